from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WITHOUT_OURS = (*forked.BARE, "hydra", "lightning")
MAPPED = {"callbacks": "dynacompile.callbacks", "conf": "dynacompile.conf", "recipes": "dynacompile.recipes"}


def importable_folders() -> set[str]:
    """Packages by the folders that hold Python files, under the names that they install as."""
    names = set()
    for top in ("dynacompile", *MAPPED):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.parent.relative_to(ROOT).parts
            if "hydra_plugins" not in parts:
                names.add(".".join((MAPPED.get(top, top), *parts[1:])))
    return names | {"hydra_plugins", "hydra_plugins.dynacompile_searchpath", "hydra_plugins.dynacompile_sweeper"}


def test_the_package_list_names_every_package():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == importable_folders()


def test_the_entry_point_is_there():
    assert PROJECT["project"]["entry-points"]["torch_dynamo_backends"] == {"dynacompile": "dynacompile.interop:backend"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy of the files that git does not ignore, whether or not they are added yet, so that nothing of the build is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(files, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source)]
    subprocess.run(command, check=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The unpacked wheel."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_code_configs_sources_and_templates(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    for top in ("dynacompile", *MAPPED):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in {".py", ".cpp", ".h", ".j2", ".yaml"} and "__pycache__" not in path.parts:
                parts = path.relative_to(ROOT).parts
                plugin = parts[:2] == ("conf", "hydra_plugins")
                installed = "/".join(parts[1:] if plugin else (MAPPED.get(top, top).replace(".", "/"), *parts[1:]))
                assert installed in held, installed
    assert not [name for name in held if name.startswith(("tests/", "callbacks/", "conf/", "recipes/", "scripts/"))]


@pytest.mark.slow
def test_the_wheel_works_from_an_empty_folder(installed, tmp_path):
    """Imported from the unpacked wheel alone: nothing of the checkout is on the path."""
    script = "\n".join(
        [
            "import sys",
            f"sys.path.insert(0, {str(installed)!r})",
            "sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in getattr(finder, '__module__', '')]",
            "import torch, dynacompile, dynacompile.conf, dynacompile.callbacks, dynacompile.recipes",
            f"assert all(m.__file__.startswith({str(installed)!r}) for n, m in sys.modules.items() if n.split('.')[0] == 'dynacompile')",
            "from dynacompile.callbacks.config_text import config_text",
            "assert (dynacompile.conf.folder() / 'compile' / 'default.yaml').read_text() == config_text()",
            "from hydra_plugins.dynacompile_searchpath import config_folder",
            "assert config_folder() == dynacompile.conf.folder()",
            "x = torch.randn(3, requires_grad=True)",
            "compiled = dynacompile.compile(lambda x: (x * 2).relu().sum())",
            "compiled(x).backward()",
            "assert torch.equal(x.grad, 2.0 * (x > 0))",
            "print('works')",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith("works"), done.stdout + done.stderr


OWN_APP = """
import sys
sys.path.insert(0, {installed!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
import hydra, lightning as L, torch
from torch import nn
from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.overrides import read_arguments

class Own(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch), batch.argmax(1) % 3)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

@hydra.main(version_base="1.3", config_path=".", config_name="own")
def main(cfg):
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=cfg.batch)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
    L.Trainer(callbacks=[DynamoCallback(cfg.compile)], max_epochs=cfg.epochs, **quiet).fit(Own(), data)
    return {{"batch": cfg.batch}}

read_arguments()
main()
"""

COMMAND = """
import sys
sys.path.insert(0, {installed!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
from dynacompile import __main__
assert __main__.__file__.startswith({installed!r})
__main__.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_users_own_app_composes_compile_from_the_wheel(installed, tmp_path):
    (tmp_path / "app.py").write_text(OWN_APP.format(installed=str(installed)))
    (tmp_path / "own.yaml").write_text(
        "defaults:\n- compile: default\n- override hydra/callbacks: comparison\n- override hydra/sweeper: each_alone\n- _self_\n"
        "epochs: 1\nbatch: 8\ncompile: {recompile_limit: 3}\n"
    )
    (tmp_path / "dyna.py").write_text(COMMAND.format(installed=str(installed)))

    def run(*arguments: str, program: str = "app.py") -> str:
        environment = {**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
        done = forked.run(WITHOUT_OURS, program, *arguments, cwd=tmp_path, env=environment)
        return done.stdout + done.stderr

    shown = run("compile=verify", "compile.modules.net.*.fuse=false", "compile.show=true")
    assert "recompile_limit=3" in shown and "own.yaml" in shown and "compile=verify" in shown and "command line" in shown, shown
    trained = run("compile.measure_steps=2", "compile.measure_after=2")
    assert "training_step, optimizer_step in mode default" in trained and "for 2 graphs" in trained and "speed-up" in trained, trained
    (report,) = tmp_path.rglob("compile_report.html")
    assert "<svg" in report.read_text()
    assert "again.html" in run("report", str(report.parent), "--to", "again.html", program="dyna.py")
    assert (tmp_path / "again.html").read_text() == report.read_text()
    explained = run("explain", "torch.nn.functional:gelu", "torch.randn(4)", program="dyna.py")
    assert "1 graph," in explained and "0 breaks" in explained, explained
    compared = run("-m", "batch=8,x", "compile.measure_steps=0", "hydra.sweep.dir=compared")
    assert "comparison of 2 runs" in compared and "1 of 2 jobs failed" in compared, compared
    again = run("sweep", "compared", program="dyna.py")
    assert "comparison of 2 runs" in again and "batch=x" in (tmp_path / "compared" / "sweep.html").read_text(), again
