"""Several jobs at once through one switch, with ranks that come late, leave early and die.

    python -m tests.soak --seconds 600 [--seed 7] [--loss 0.005]

`plan` draws what shall happen, `rank` is what a worker's process does, `judge` says what is wrong with what
came back, `run` puts them together.
"""
