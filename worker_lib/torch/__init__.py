"""PyTorch: a backend for torch.distributed that sums through the switch.

import worker_lib.torch
torch.distributed.init_process_group("switchagg")
"""

from worker_lib.torch.hooks import State, allreduce_hook
from worker_lib.torch.options import Options
from worker_lib.torch.process_group import SwitchGroup, register
from worker_lib.torch.work import SwitchWork

__all__ = ["Options", "State", "SwitchGroup", "SwitchWork", "allreduce_hook"]

register()
