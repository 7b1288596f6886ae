"""Distributed optimization methods whose only communication is a sum (or an OR) through the switch.

Every method is a function that each worker calls in its own process, with its own share of the problem:

    x = diana.run(problem, session, steps=500, compressor=..., log=log)

`base` has what they share (a problem, a session, steps, a log), `problems` the problems that are solved here.
docs/algorithms.md says which method is for what.
"""
