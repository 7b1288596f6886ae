"""Ray Train over a switch.

    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer
    from worker_lib.torch.ray import TorchConfig         # was: from ray.train.torch import TorchConfig

    TorchTrainer(train, torch_config=TorchConfig(), scaling_config=ScalingConfig(num_workers=4)).fit()

PyTorch knows the backend once `worker_lib.torch` is imported, which this configuration has every worker do
before Ray makes the process group. Rank 0 starts a switch on its node, or all ranks use that of
SWITCHAGG_CONTROLLER.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import ray.train.torch


def _load() -> None:
    importlib.import_module("worker_lib.torch")


@dataclass
class TorchConfig(ray.train.torch.TorchConfig):  # type: ignore[misc]
    """Ray's configuration of that name, with "switchagg" as the backend unless another one is given."""

    backend: str | None = "switchagg"

    @property
    def backend_cls(self) -> Any:
        """Ray's backend class, which imports the backend at each worker first."""
        base = super().backend_cls

        class Loading(base):  # type: ignore[misc, valid-type]
            def on_start(self, worker_group: Any, backend_config: Any) -> None:
                worker_group.execute(_load)
                super().on_start(worker_group, backend_config)

        return Loading
