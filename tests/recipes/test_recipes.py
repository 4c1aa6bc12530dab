from __future__ import annotations

import lightning as L
import numpy as np
import pytest
import torch

from dynacompile.recipes import GPT, MLP, ByteText, ConvNet, NextByte, corpus
from dynacompile.recipes.optimizing import learning_rate_share
from dynacompile.recipes.text import Windows

NETS = {
    "GPT": lambda: GPT(layers=1, width=16, heads=2, context=32),
    "MLP": lambda: MLP(span=4, embedding=8, width=16, layers=1),
    "ConvNet": lambda: ConvNet(layers=2, width=8),
}


@pytest.fixture
def library(tmp_path):
    root = tmp_path / "lib"
    for i in range(40):
        folder = root / ("pkg" if i % 2 else ".")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"m{i}.py").write_text(f"x = {i}\n" * 50)
    for skipped in ("test/t.py", "site-packages/s.py", "pkg/tests/u.py", "_sysconfigdata_x.py"):
        (root / skipped).parent.mkdir(parents=True, exist_ok=True)
        (root / skipped).write_text("SKIPPED\n")
    return root


def test_corpus_is_split_by_file_and_is_the_same_every_time(library, tmp_path):
    first = corpus.load(library, tmp_path / "a")
    again = corpus.load(library, tmp_path / "b")
    assert bytes(first.train) == bytes(again.train) and bytes(first.validation) == bytes(again.validation)
    assert b"SKIPPED" not in bytes(first.train) + bytes(first.validation)
    for path in corpus.library_files(library):
        held_out = corpus.is_validation(path.relative_to(library).as_posix())
        assert (path.read_bytes() in bytes(first.validation)) is held_out
        assert (path.read_bytes() in bytes(first.train)) is not held_out


def test_corpus_without_source_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="comes without its source"):
        corpus.load(tmp_path, tmp_path / "cache")


def test_unigram_loss_is_the_entropy_where_both_texts_agree():
    text = np.frombuffer(b"aaab" * 50_000, dtype=np.uint8)
    assert corpus.Corpus(text, text).unigram_loss() == pytest.approx(0.5623, abs=0.002)


def test_windows_are_shifted_by_one_and_cover_the_text():
    text = np.arange(25, dtype=np.uint8)
    windows = Windows(text, 8)
    assert len(windows) == 3
    inputs, targets = windows.__getitems__([0, 2])
    assert inputs.tolist() == [list(range(8)), list(range(16, 24))] and targets.tolist() == [list(range(1, 9)), list(range(17, 25))]
    assert torch.equal(windows[2][0], inputs[1]) and inputs.dtype == torch.int64


def test_order_depends_on_the_seed_alone():
    def first_batch(seed: int, disturb: int) -> torch.Tensor:
        data = ByteText(context=16, batch_size=4, seed=seed)
        data.setup("fit")
        torch.manual_seed(disturb)
        return next(iter(data.train_dataloader()))[0]

    assert torch.equal(first_batch(0, 1), first_batch(0, 2))
    assert not torch.equal(first_batch(0, 1), first_batch(1, 1))


@pytest.mark.parametrize("name", NETS)
def test_nets_look_back_only(name):
    net = NETS[name]().eval()
    tokens = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 256
    before, after = net(tokens), net(changed)
    assert before.shape == (2, 32, 256)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_gpt2_small_has_its_parameter_count():
    with torch.device("meta"):
        net = GPT(layers=12, width=768, heads=12, context=1024, vocabulary=50304)
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(124.5e6, rel=0.01)


def test_learning_rate_warms_up_then_falls_to_a_tenth():
    shares = [learning_rate_share(step, 10, 100) for step in range(100)]
    assert shares[0] == 0.1 and shares[9] == 1.0 and shares == shares[:10] + sorted(shares[10:], reverse=True)
    assert 0.1 <= shares[-1] < 0.11


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_nets_learn(name, tmp_path):
    L.seed_everything(0, verbose=False)
    data = ByteText(context=32, batch_size=16)
    trainer = L.Trainer(
        max_epochs=1,
        limit_train_batches=150,
        limit_val_batches=5,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(NextByte(NETS[name](), lr=1e-2, warmup=10), datamodule=data)
    assert trainer.callback_metrics["val/loss"] < trainer.callback_metrics["val/unigram_loss"] - 0.1
