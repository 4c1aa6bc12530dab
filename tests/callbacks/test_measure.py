from __future__ import annotations

import random

import lightning as L
import numpy as np
import torch

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.measure import undisturbed
from tests.callbacks.conftest import Regression, loader


class Recorder(L.Callback):
    """Every training loss, as a list."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.losses.append(outputs["loss"].item())


def test_measuring_changes_nothing_of_the_fit(fit, compiler):
    plain, measured = Recorder(), Recorder()
    one = fit(plain)
    other = fit(DynamoCallback({"measure_after": 3, "measure_steps": 2, "step": False, "modules": ["net"]}), measured)
    assert measured.losses == plain.losses
    assert other.calls == one.calls + 2 * 3  # two kinds, one untimed and two timed steps of each
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values()):
        assert torch.equal(a, b), name


def test_undisturbed_puts_everything_back():
    module = Regression()
    batch = next(iter(loader()))
    module.net(batch[0]).sum().backward()
    grads = [p.grad.clone() for p in module.parameters()]
    owners = [p.grad for p in module.parameters()]
    state = {name: value.clone() for name, value in module.state_dict().items()}
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    with undisturbed(module):
        module.training_step(batch, 0).backward()
        random.random(), np.random.rand(), torch.rand(1)
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected
    assert all(p.grad is owner and torch.equal(p.grad, grad) for p, owner, grad in zip(module.parameters(), owners, grads))
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert not {"log", "log_dict"} & set(module.__dict__)


class Manual(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn_loss(self, batch))
        optimizer.step()


def nn_loss(module, batch):
    return torch.nn.functional.mse_loss(module.net(batch[0]), batch[1])


def test_manual_optimization_is_not_measured_and_says_why(compiler, tmp_path):
    callback = DynamoCallback({"measure_after": 1, "trace": False})
    trainer = L.Trainer(
        max_epochs=1,
        limit_train_batches=3,
        limit_val_batches=0,
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Manual(), loader())
    assert callback.outcome is not None and callback.outcome.times is None
    assert "manual optimization" in callback.outcome.unmeasured
