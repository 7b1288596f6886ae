"""Makes "switchagg" a backend that `torch.distributed.init_process_group` and `new_group` know."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from switchagg.errors import UsageError
from worker_lib.torch import staging, versions
from worker_lib.torch.group import SwitchGroup
from worker_lib.torch.options import Options

NAME = "switchagg"


def register() -> None:
    """Registers the backend; does nothing the second time.

    Raises `UsageError` where this PyTorch is too old, or has no distributed package, or no gloo.
    """
    versions.check()
    if not dist.is_available() or not dist.is_gloo_available():
        raise UsageError("this PyTorch has no torch.distributed with gloo, which switchagg builds on")
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=staging.devices())


def _make(given: Any, options: Any) -> SwitchGroup:
    """What PyTorch calls for each new group, on its members."""
    if options is None:
        options = Options()
    elif not isinstance(options, Options):
        raise UsageError(f"pg_options is a {type(options).__name__}; accepted: worker_lib.torch.Options(...)")
    return SwitchGroup(
        given.store, given.group_rank, given.group_size, given.timeout, given.group_id, options
    )
