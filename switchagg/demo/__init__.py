"""`switchagg demo`: trains a small language model through the software switch, and reports on it.

cli -> run.py ─┬─ switchagg host      controller and switch, one process
               ├─ worker.py   x n     forward, backward, all-reduce, Adagrad
               └─ worker.py   x 2     the same batches in one process, without a network
         └──> outcome.py ──> report.py, plots.py      index.html, its pictures, results.json
"""
