"""gloo through torch.distributed on CPU tensors, as they are or on half-precision copies (`gloo-fp16`).

`gloo-fp16` is what a user does to halve the bytes without other software: convert to float16, reduce,
convert back, with both conversions inside the timing.
"""

from __future__ import annotations

from datetime import timedelta
from importlib.util import find_spec

import numpy as np

from switchagg.bench.grid import Variant
from switchagg.bench.peers.peer import Endpoint, Peer, RankConfig, Work


class GlooPeer(Peer):
    """Starts nothing besides the ranks; they meet in a file."""

    name = "gloo"

    def missing(self) -> str | None:
        if find_spec("torch") is None:
            return "torch is not installed (pip install 'switchagg[torch]')"
        return None

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "GLOO_SOCKET_IFNAME": "lo"}

    def refuses(self, variant: Variant, dtype: str) -> str | None:
        if variant.system == "gloo-fp16" and dtype not in ("float32", "float64"):
            return f"gloo-fp16 converts float32 and float64 only, not {dtype}"
        return None


class GlooEndpoint(Endpoint):
    """A rank of a gloo group."""

    def __init__(self, config: RankConfig) -> None:
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        self._torch = torch
        self._distributed = distributed
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{config.directory / 'gloo'}",
            rank=config.rank,
            world_size=config.workers,
            timeout=timedelta(seconds=config.timeout),
        )

    def prepare(self, work: Work) -> None:
        if work.tensors[0].dtype.name == "bfloat16":
            views = [self._torch.from_numpy(x.view(np.int16)) for x in work.tensors]
            work.prepared = [view.view(self._torch.bfloat16) for view in views]
        else:
            work.prepared = [self._torch.from_numpy(x) for x in work.tensors]

    def reduce(self, work: Work, call: int) -> None:
        tensor = work.prepared[call]
        if work.system == "gloo-fp16":
            half = tensor.to(self._torch.float16)
            self._distributed.all_reduce(half)
            tensor.copy_(half)
        else:
            self._distributed.all_reduce(tensor)

    def close(self) -> None:
        self._distributed.destroy_process_group()


open_endpoint = GlooEndpoint
