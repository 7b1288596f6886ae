"""A `Switch`, or a `RackSwitch`, in the controller's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from switchagg.control.drivers.base import reconcile_by_calls
from switchagg.errors import SwitchAggError, SwitchError
from switchagg.rules.slots import JobEntry, SlotState
from switchagg.rules.switch import DEFAULT_MEMORY, Capacity, ChangeKind, Reconciled, SwitchChange

if TYPE_CHECKING:
    from switchagg.emulator.ether_switch import RackSwitch
    from switchagg.emulator.switch import Switch


_T = TypeVar("_T")


class EmbeddedDriver:
    """Drives a started switch; `SwitchDriver` says what each member is.

    Args:
        switch: started, at a concrete address. The driver does not close it.
        capacity: slots that the switch was made with.
        memory: bytes that slots may take.
    """

    def __init__(
        self,
        switch: Switch | RackSwitch,
        capacity: int,
        memory: int = DEFAULT_MEMORY,
        *,
        name: str = "local",
    ) -> None:
        self._switch = switch
        self.name = name
        self.target = "native"
        self.address = switch.address
        self.capacity = Capacity(capacity, switch.largest_words, memory, directs=True)
        self._jobs: dict[int, JobEntry] = {}
        self._fenced: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def receive_buffer(self) -> int:
        return self._switch.receive_buffer

    @property
    def link(self) -> str:
        return self._switch.link

    @property
    def threads(self) -> int:
        return self._switch.threads

    @property
    def memory(self) -> str:
        return self._switch.memory

    @property
    def warnings(self) -> list[str]:
        return list(self._switch.warnings)

    def install_job(self, entry: JobEntry) -> None:
        with self._lock:
            _asked(self._switch.add_job, entry)
            self._jobs[entry.job] = entry

    def remove_job(self, job_id: int) -> None:
        with self._lock:
            _asked(self._switch.remove_job, job_id)
            self._jobs.pop(job_id, None)
            self._fenced.pop(job_id, None)

    def fence(self, job_id: int, bits: int) -> None:
        with self._lock:
            _asked(self._switch.fence, job_id, bits)
            self._fenced[job_id] = self._fenced.get(job_id, 0) | bits

    def packets_out(self, packets: Sequence[bytes]) -> list[bytes]:
        return [echo for packet in packets for echo in _asked(self._switch.packet_out, packet)]

    def counters(self) -> Mapping[str, int]:
        return _asked(self._switch.counters)

    def job_counters(self, job_id: int) -> Mapping[str, int]:
        return _asked(self._switch.job_counters, job_id)

    def slot(self, index: int) -> SlotState | None:
        return _asked(self._switch.slot, index)

    def reconcile(self, entries: Sequence[JobEntry], fenced: Mapping[int, int]) -> Reconciled:
        return reconcile_by_calls(self, self._jobs, self._fenced, entries, fenced)

    def watch(self, callback: Callable[[SwitchChange], None]) -> None:
        # In the controller's own process: there from the start, and gone only together with it.
        callback(SwitchChange(ChangeKind.connected))

    def close(self) -> None:
        """Does nothing: the switch belongs to whoever started it."""


def _asked(method: Callable[..., _T], *arguments: Any) -> _T:
    """Calls the switch. Whatever it or its native half raises becomes a `SwitchError`."""
    try:
        return method(*arguments)
    except SwitchError:
        raise
    except (SwitchAggError, OSError, RuntimeError, ValueError, KeyError, IndexError, MemoryError) as error:
        raise SwitchError(f"{error}" or type(error).__name__) from error
