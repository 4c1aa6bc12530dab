"""The callback over the real compiler."""

from __future__ import annotations

import lightning as L
import pytest
import torch

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.outcome import NOT_CALLED
from dynacompile.callbacks.screen import facts
from dynacompile.errors import ConfigError, Unsupported
from dynacompile.events import Compiled, Recompiled
from dynacompile.recipes import GPT, ByteText, NextByte
from tests.callbacks.conftest import Regression

QUICK = {"measure_after": 2, "measure_steps": 1}
MODULE_ALONE = {"step": False, "modules": ["net"]}


def test_a_compiled_fit_equals_an_eager_one(fit):
    plain = fit()
    callback = DynamoCallback(QUICK)
    compiled = fit(callback)
    for (name, a), (other, b) in zip(plain.state_dict().items(), compiled.state_dict().items(), strict=True):
        assert name == other
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    counts = callback.outcome.ledger.metrics()
    assert counts["graphs"] >= 1 and counts["graph_breaks"] == 0 and counts["seconds"] > 0
    assert callback.outcome.times.compiled > 0
    assert compiled.net._compiled_call_impl is None


def test_blocks_are_compiled_apart_with_their_own_buckets(fit):
    callback = DynamoCallback({**QUICK, "step": False, "modules": {"net.blocks.*": {"isolate_recompiles": True, "recompile_limit": 4}}})
    fit(callback)
    regions = callback.outcome.ledger.per_region()
    assert [name for name in regions if regions[name].get("graphs")] == ["net.blocks.0", "net.blocks.1", "net.blocks.2"]
    assert callback.outcome.ledger.metrics()["limits_hit"] == 0


@pytest.mark.slow
def test_validation_loss_of_the_gpt_equals_eagers(tmp_path):
    def validation_loss(*callbacks: L.Callback) -> float:
        L.seed_everything(0, verbose=False)
        trainer = L.Trainer(
            max_epochs=1,
            limit_train_batches=40,
            limit_val_batches=4,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            callbacks=list(callbacks),
            enable_checkpointing=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            gradient_clip_val=1.0,
        )
        trainer.fit(NextByte(GPT(layers=2, width=32, heads=2, context=32), lr=1e-2, warmup=10), datamodule=ByteText(context=32, batch_size=8))
        return float(trainer.callback_metrics["val/loss"])

    assert validation_loss(DynamoCallback({**QUICK, "trace": False})) == pytest.approx(validation_loss(), rel=1e-4)


class CallsForward(Regression):
    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net.forward(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val/loss", torch.nn.functional.mse_loss(self.net.forward(batch[0]), batch[1]))


def test_a_module_that_is_called_by_its_forward_is_not_reported_as_compiled(fit):
    callback = DynamoCallback(QUICK | MODULE_ALONE)
    with pytest.warns(RuntimeWarning, match="no call of net came through its region"):
        fit(callback, cls=CallsForward)
    outcome = callback.outcome
    assert outcome.modules == () and outcome.idle == ("net",) and outcome.times.compiled is None
    assert ("not compiled", f"net: {NOT_CALLED}") in facts(outcome)
    assert "speedup" not in outcome.metrics()


def test_under_fullgraph_a_module_that_is_called_by_its_forward_is_an_error(fit):
    with pytest.raises(Unsupported, match="no call of net came through its region"):
        fit(DynamoCallback({**QUICK, **MODULE_ALONE, "fullgraph": True}), cls=CallsForward)


def test_dispatch_gives_each_key_of_a_steps_calls_a_bucket_with_its_options(fit):
    def half(batch, index):
        return "first" if index < 8 else "second"

    callback = DynamoCallback(QUICK, dispatch={"training_step": {"by": half, "options": {"second": {"dynamic": True}}}})
    plain, compiled = fit(), fit(callback)
    torch.testing.assert_close(list(plain.parameters()), list(compiled.parameters()), rtol=1e-4, atol=1e-5)
    regions = [event.region for event in callback.outcome.ledger.of(Compiled)]
    assert {"training_step['first']", "training_step['second']"} <= set(regions) and "training_step" not in regions
    assert callback.outcome.ledger.metrics()["recompiles"] == 0


@pytest.mark.parametrize(
    ("dispatch", "message"),
    [
        ({"training_stp": {"by": len}}, "dispatch: 'training_stp' is no step .*: did you mean 'training_step'"),
        ({"net": {"by": len}}, "dispatch: 'net' is no step and no module that compile.modules names"),
        ({"training_step": {"by": "net"}}, r"dispatch\['training_step'\] must be"),
        ({"training_step": {"by": len, "option": {}}}, "unknown key 'option': did you mean 'options'"),
        (
            {"training_step": {"by": len, "options": {1: {"dynamc": True}}}},
            r"dispatch\['training_step'\]\[1\]: unknown compile option 'dynamc': did you mean 'dynamic'",
        ),
    ],
    ids=["no such step", "module that is not compiled", "no function", "mistyped key", "mistyped option"],
)
def test_a_wrong_dispatch_is_an_error_that_names_the_nearest(fit, dispatch, message):
    with pytest.raises(ConfigError, match=message):
        fit(DynamoCallback(dispatch=dispatch))


def test_the_sanity_check_leaves_no_graph_without_the_cuts_at_named_modules(fit):
    """The validation step is captured once, with a cut at the call of `net`; it was captured whole in the sanity check, where `net` is not compiled."""
    callback = DynamoCallback({**QUICK, "modules": ["net"]})
    fit(callback, num_sanity_val_steps=2)
    steps = [event for event in callback.outcome.ledger.of(Recompiled) if event.region == "validation_step"]
    assert steps == []


def test_the_screen_has_losses_and_what_the_progress_bar_shows(fit):
    class Scored(Regression):
        def validation_step(self, batch, index):
            self.log("val/score", self.net(batch[0]).mean(), prog_bar=True)
            self.log("val/hidden", self.net(batch[0]).mean())

    callback = DynamoCallback(enabled=False, measure_steps=0)
    fit(callback, cls=Scored)
    assert set(callback.outcome.losses) == {"train/loss", "val/score"}
