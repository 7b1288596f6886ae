"""PyTorch: a backend for torch.distributed that sums through the switch.

import worker_lib.torch
torch.distributed.init_process_group("switchagg")
"""

import os
import warnings

from switchagg.errors import UsageError
from worker_lib import launchers
from worker_lib.torch.hooks import State, allreduce_hook
from worker_lib.torch.options import Options
from worker_lib.torch.process_group import SwitchGroup, register
from worker_lib.torch.work import SwitchWork

__all__ = ["Options", "State", "SwitchGroup", "SwitchWork", "allreduce_hook"]

register()
try:
    launchers.export(os.environ)
except UsageError as error:  # rank and world_size may be given to init_process_group
    warnings.warn(f"init_process_group finds no rank and world_size: {error}", stacklevel=2)
