"""Which cases of a module's tests run in this session, for fixtures that compute all of them at once."""

from __future__ import annotations

from typing import Any

import pytest


def asked(request: pytest.FixtureRequest, test: str) -> list[dict[str, Any]]:
    """The arguments of the cases of a test of the fixture's module that the session runs; a lane leaves cases out, and so does who names one."""
    own = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    return [dict(item.callspec.params) for item in own if item.originalname == test]
