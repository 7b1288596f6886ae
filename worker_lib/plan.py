from enum import IntEnum


class DType(IntEnum):
    F32 = 0
    F64 = 1
    F16 = 2
    BF16 = 3
    I32 = 4
    I64 = 5
    RAW = 6


class Kind(IntEnum):
    ALLREDUCE = 0
    BROADCAST = 1
    ALLGATHER = 2
    REDUCE_SCATTER = 3
    BARRIER = 4
    FLOOR = 5


class ReduceOp(IntEnum):
    SUM = 0
    AVG = 1
    OR = 2
