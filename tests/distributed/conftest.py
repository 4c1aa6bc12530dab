"""A mesh without other processes."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynacompile


@pytest.fixture
def mesh():
    """Two ranks, of which this process is the first, and whose collectives do nothing."""
    dynacompile.reset()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()
