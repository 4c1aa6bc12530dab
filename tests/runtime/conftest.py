from __future__ import annotations

import pytest

from dynacompile.runtime import link
from tests.runtime.schedules import Maker, compile_kernels, run_oracle


@pytest.fixture(scope="session")
def module(tmp_path_factory):
    """Makes modules with compiled CPU kernels."""
    return Maker(compile_kernels(tmp_path_factory.mktemp("kernels")))


@pytest.fixture(params=["cpp", "reference"])
def linked(request, module):
    """Links a schedule's parts, with compiled kernels and with reference kernels."""
    make = module if request.param == "cpp" else Maker(None)
    return lambda *args, **kwargs: link(make(*args, **kwargs), None, run_oracle)
