"""Collectives for training processes, summed by a switch on the way.

    import worker_lib

    with worker_lib.connect() as session:    # controller, job, rank and world size from the environment
        session.allreduce(x)                 # NumPy array or CPU torch tensor, in place

`connect` joins a job and returns a `Session`, whose methods are the collectives. With ``async_op=True`` one
returns a `Work`. Every error is a `SwitchAggError`.
"""

from switchagg import __version__
from switchagg.errors import (
    AdmissionError,
    CollectiveTimeout,
    IntegrityError,
    MismatchError,
    NetworkError,
    PeerError,
    SessionBrokenError,
    SwitchAggError,
    SwitchError,
    UsageError,
    WorkerLostError,
)
from worker_lib.connect import connect
from worker_lib.session import Session
from worker_lib.session_state import CollectiveRecord
from worker_lib.work import Work

__all__ = [
    "AdmissionError",
    "CollectiveRecord",
    "CollectiveTimeout",
    "IntegrityError",
    "MismatchError",
    "NetworkError",
    "PeerError",
    "Session",
    "SessionBrokenError",
    "SwitchAggError",
    "SwitchError",
    "UsageError",
    "Work",
    "WorkerLostError",
    "__version__",
    "connect",
]
