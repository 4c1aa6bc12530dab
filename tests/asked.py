"""Which cases of a module's tests run in this session, for fixtures that compute all of them at once."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def asked(request: pytest.FixtureRequest, test: str) -> list[dict[str, Any]]:
    """The arguments of the cases of a test of the fixture's module that the session runs; a lane leaves cases out, and so does who names one."""
    own = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    return [dict(item.callspec.params) for item in own if item.originalname == test]


def cases_of(module: ModuleType) -> list[Any]:
    """The names of the cases that processes of several ranks run, for `parametrize`. Those that its FURTHER names are what `make test` leaves out."""
    further = getattr(module, "FURTHER", ())
    return [pytest.param(case.__name__, marks=[pytest.mark.further] if case.__name__ in further else []) for case in module.CASES]
