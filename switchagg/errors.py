"""Every exception that switchagg raises on purpose, under one base.

The branch says whose fault it was: the caller's, a peer's, the network's or the switch's.

    SwitchAggError
    ├── UsageError          the caller passed something that cannot work (also a ValueError)
    ├── PeerError           another member of the job did
    │   ├── MismatchError       ranks called different collectives, or the same one differently
    │   └── WorkerLostError     a rank's process ended or went silent
    ├── NetworkError        packets do not get through
    │   └── CollectiveTimeout   a collective did not finish in its caller's time (also a TimeoutError)
    ├── SwitchError         the switch or its controller is missing, full, or refused a request
    │   └── AdmissionError      the controller did not admit the job or this rank
    └── SessionBrokenError  an earlier error left this session unusable; it must rejoin
"""

from __future__ import annotations


class SwitchAggError(Exception):
    """Base of all errors raised on purpose by `switchagg` and `worker_lib`."""


class UsageError(SwitchAggError, ValueError):
    """The caller passed a value that cannot work. The message names it and says what is accepted."""


class PeerError(SwitchAggError):
    """Another member of the job is at fault."""


class MismatchError(PeerError):
    """Ranks called different collectives, or the same one with different arguments."""


class WorkerLostError(PeerError):
    """A rank's process ended, or went silent, while others needed it.

    Attributes:
        ranks: the ranks that were lost.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class NetworkError(SwitchAggError):
    """Packets do not get through."""


class CollectiveTimeout(NetworkError, TimeoutError):
    """A collective did not finish within the time that the caller gave."""


class SwitchError(SwitchAggError):
    """The switch or its controller is missing, full, or refused a request."""


class IntegrityError(SwitchError):
    """A RESULT is not the sum of what the ranks have sent: words were damaged, or changed on purpose."""


class AdmissionError(SwitchError):
    """The controller did not admit the job or this rank.

    Attributes:
        code: the controller's machine-readable reason, such as ``rank_taken``.
    """

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class SessionBrokenError(SwitchAggError):
    """An earlier error left this session unusable; connect again."""


def require(condition: bool, name: str, value: object, accepted: str) -> None:
    """Raises UsageError with name, value and what is accepted, unless the condition holds."""
    if not condition:
        raise UsageError(f"{name} is {value}; accepted: {accepted}")


for _each in list(globals().values()):
    if isinstance(_each, type) and issubclass(_each, SwitchAggError):
        _each.__module__ = "worker_lib"  # tracebacks show the name by which users catch it
