"""Benchmarks: this project's all-reduce beside what a user would pick instead, in one run, results checked.

    grid.py       what is to be measured: parameters, their limits, the cells of the grid
    data.py       the tensors, from seeds: any process can make any rank's
    check.py      is a result right, and how noisy
    rank.py       the process of one rank: fills, waits for the agreed instant, calls, answers
    messages.py   what it and the parent say to each other
    group.py      one system's ranks, seen from the parent: start, command, stop
    peers/        the systems, one file each
    allreduce.py  the run: cells, rounds in turn, samples to figures
    report.py     JSON, table, progress

The parent never takes part in a collective. It starts a group of rank processes for each system, all of them
idle except the one whose turn it is, and speaks with them over a Unix socket.
"""
