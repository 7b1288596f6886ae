"""Benchmarks: this project's all-reduce beside the systems that users have instead, results checked.

    grid.py       parameters, their limits, the cells of the grid
    data.py       the tensors, from seeds: any process can make any rank's
    check.py      error bounds of a result, and its noise
    group.py      one system's rank processes: start, command, stop
    peers/        the systems, one file each
    rank.py       commands to a rank, and the rank that carries them out: fill, reduce, digest
    allreduce.py  the run: cells, rounds in turn, samples to figures
    report.py     JSON, table, progress of it
    policy.py     the skip policy that a controller tunes, against fixed ones
    ddp.py        training under DistributedDataParallel; ddp_rank.py is its rank

The parent never takes part in a collective. It starts a group of rank processes for each system, all of them
idle except the one whose turn it is, and commands them over a Unix socket.
"""
