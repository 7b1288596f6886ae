"""This project: worker_lib sessions through an emulated switch on loopback, under an embedded controller."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from switchagg.bench.grid import DEFAULT, EXACT, Settings, is_float
from switchagg.bench.peers.peer import Endpoint, Peer, RankConfig, Work
from switchagg.emulator.faults import Faults
from switchagg.emulator.rates import Rate
from switchagg.errors import SwitchError

if TYPE_CHECKING:
    from worker_lib.embedded import Embedded


class SwitchaggPeer(Peer):
    """One switch with one job over one transport, injecting `loss` and the settings' other faults."""

    name = "switchagg"

    def __init__(
        self, settings: Settings, loss: float = 0.0, transport: str = "auto", *, deadline: float | None = None
    ) -> None:
        self._settings = settings
        self._deadline = deadline
        self._transport = transport
        self._loss = loss
        self._host: Embedded | None = None

    @property
    def binds(self) -> bool:
        return self._transport == "slots"  # else the switch takes turns with ranks

    def missing(self) -> str | None:
        try:
            importlib.import_module("worker_lib")
        except ImportError as error:
            return f"worker_lib cannot be imported: {error} (make install, or make native)"
        return None

    def start(self) -> dict[str, Any]:
        settings = self._settings
        faults = Faults(
            loss=self._loss, duplicate=settings.duplicate, reorder=settings.reorder, seed=settings.seed
        )
        rate = [] if settings.rate is None else Rate.parse(settings.rate).options()
        from worker_lib.embedded import start_embedded

        self._host = start_embedded(arguments=[*faults.options(), *rate], quiet=True)
        return {
            "controller": self._host.controller,
            "words": settings.words,
            "slots": settings.slots,
            "transport": self._transport,
            "deadline": self._deadline,
        }

    def processes(self) -> list[int]:
        return [self._host.pid] if self._host else []

    def warnings(self) -> list[str]:
        return list(self._host.warnings) if self._host else []

    def stop(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None


class SwitchaggEndpoint(Endpoint):
    """A rank's session, which takes arrays as they are."""

    def __init__(self, config: RankConfig) -> None:
        self.session = self._connect(config)
        asked, used = config.options["transport"], self.session.transport
        if asked not in ("auto", used):
            raise SwitchError(f"packets go by {used}, where {asked} is to be measured")

    def _connect(self, config: RankConfig) -> Any:
        worker_lib: Any = importlib.import_module("worker_lib")
        return worker_lib.connect(
            config.options["controller"],
            job="bench",
            rank=config.rank,
            world_size=config.workers,
            timeout=config.timeout,
            words=config.options["words"],
            slots=config.options["slots"],
            transport=config.options["transport"],
            deadline=config.options["deadline"],
        )

    def prepare(self, work: Work) -> None:
        # Only integers of 64 bits have no choice of lanes to name.
        limbs = work.bits in (EXACT, DEFAULT)
        bits = work.bits if is_float(work.tensors[0].dtype.name) and not limbs else None
        accuracy = "exact" if work.bits == EXACT else None
        call: dict[str, Any] = {"bits": bits, "accuracy": accuracy, "block_size": work.block_size}
        masks: Sequence[Any] = ["auto"] * len(work.tensors) if work.masks is None else work.masks
        work.prepared = [call | {"blocks": blocks} for blocks in masks]

    def reduce(self, work: Work, call: int) -> None:
        self.session.allreduce(work.tensors[call], **work.prepared[call])

    def counters(self) -> dict[str, float]:
        return flatten(self.session.stats())

    def close(self) -> None:
        self.session.close()


def flatten(stats: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Counters on one level: `{"seconds": {"wire": 1}}` becomes `{"seconds.wire": 1}`; numbers only."""
    flat: dict[str, float] = {}
    for key, value in stats.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[prefix + key] = value
    return flat


open_endpoint = SwitchaggEndpoint
