"""Which tests are in the fast lane (`tests.lanes`); no test leaves a mode of torch behind, under which others would run."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tests import lanes

# For devices that are not there torch.manual_seed keeps the text of the caller's stack, which takes longer than many a program that is tested.
for module in (torch.cuda, torch.xpu, torch.mtia):
    if not module.is_available():
        module.traceback = SimpleNamespace(format_stack=list)

SLOW = frozenset(
    """
    architecture/test_imports.py build/test_attention_builds.py
    callbacks/test_inert.py callbacks/test_loggers.py callbacks/test_measure.py callbacks/test_reports.py
    callbacks/test_run_folder.py callbacks/test_train.py capture/test_dropped.py
    codegen/test_cpp_groups.py codegen/test_triton.py codegen/test_triton_attention.py codegen/test_triton_lists.py codegen/test_triton_products.py
    dynamic/test_backend_programs.py dynamic/test_backend_triton.py dynamic/test_triton_forms.py optimizers/test_every_form.py
    programs/test_functions_as_objects.py programs/test_numbers_at_the_edges.py programs/test_p12_advice.py programs/test_p56_backward_hooks.py
    programs/test_p86_flexible_attention.py recipes/test_recipes.py runtime/test_cpu_memory.py runtime/test_gil.py runtime/test_no_memory.py
    threads/test_background.py threads/test_background_at_exit.py threads/test_forks.py threads/test_interrupts.py threads/test_storm.py
    """.split()
)
SLOW_FOLDERS = frozenset({"fuzz", "opdb"})  # slices of long runs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-costs", action="store_true", help="write the CPU seconds of the tests that run to tests/costs.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-costs"):
        config.pluginmanager.register(lanes.Recorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    costs = lanes.recorded()
    if not config.getoption("--record-costs"):
        for item in list(lanes.cases_left_out(items, costs)):
            item.add_marker(pytest.mark.further)
    files = lanes.fast_files(costs)
    for item in items:
        folder, file = item.path.parent.name, item.path.name
        if f"{folder}/{file}" in SLOW or SLOW_FOLDERS & set(item.path.relative_to(lanes.TESTS).parts):
            item.add_marker(pytest.mark.slow)
        if lanes.is_fast(item, costs, files):
            item.add_marker(pytest.mark.fast)
    if hasattr(config, "workerinput"):
        lanes.dearest_first(items, costs)


bugs_of_capture: list[str] = []


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    """A frame that is left to Python by an error of capture itself computes what it should, and is a bug. A filter would change what is captured."""
    if "capture itself failed" in str(warning_message.message):
        bugs_of_capture.append(f"{nodeid}: {warning_message.message}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if bugs_of_capture and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for text in dict.fromkeys(bugs_of_capture):
        terminalreporter.write_line(f"FAILED {text}", red=True)


def pytest_collection_finish() -> None:
    """Collections during tests look at what came since: not at torch, and all tests, each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    yield
    left = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    assert left == (0, 0, True, False), f"the test leaves modes of torch behind: {left}"
    casts = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), torch.is_autocast_cache_enabled()
    assert casts == (False, False, True), f"the test leaves autocast behind: {casts}"
