"""What a training process imports: collectives that are summed by a switch on the way.

import worker_lib
with worker_lib.connect() as session:   # address, job, rank and world size from the environment, or as
arguments
    session.allreduce(x)                # NumPy array or CPU torch tensor, in place
"""

from switchagg.errors import (
    AdmissionError,
    CollectiveTimeout,
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
from worker_lib.work import Work

__all__ = [
    "AdmissionError",
    "CollectiveTimeout",
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
    "connect",
]
