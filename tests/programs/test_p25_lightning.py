"""A LightningModule's training_step, compiled as a function, with self.log inside."""

import lightning
import pytest
import torch

import dynacompile
import dynacompile.callbacks.steps  # which says how Lightning's logging is to be called
from dynacompile.events import Compiled, GraphBroke, Recompiled


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        scaled = loss * 2
        return scaled + 0.5

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class QuietLit(Lit):
    @torch.compiler.disable
    def log(self, *args, **kwargs):
        return super().log(*args, **kwargs)


def fit(cls, compiled):
    lightning.seed_everything(0, verbose=False)
    module = cls()
    if compiled:
        module.training_step = dynacompile.compile(module.training_step)
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module.losses, [p.detach() for p in module.parameters()], float(trainer.callback_metrics["loss"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [Lit, QuietLit])
def test_training_step_with_log(cls):
    dynacompile.reset()
    want = fit(cls, False)
    events = []
    end = dynacompile.subscribe(events.append)
    got = fit(cls, True)
    end()
    assert got[0] == pytest.approx(want[0], rel=1e-5) and got[2] == pytest.approx(want[2], rel=1e-5)
    for a, b in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(a, b)
    assert [e for e in events if isinstance(e, Compiled) and e.ops] and not [e for e in events if isinstance(e, Recompiled)]
    assert {e.code for e in events if isinstance(e, GraphBroke)} == ({"disabled"} if cls is QuietLit else set())
