"""`switchagg demo`: train a small language model through the software switch, and show what happened.

    cli -> run.py ─┬─ switchagg host      controller and switch, one process
                   ├─ worker.py   x n     forward, backward, all-reduce, Adagrad
                   └─ reference.py  x 2   the same batches in one process, without a network
             └──> outcome.py ──> report.py, report.html, plots.py    index.html, its pictures, results.json

settings.py says what a run is, corpus.py reads its text, model.py learns it. processes.py starts children and
leaves none behind; messages.py is what they say; progress.py is what the terminal shows meanwhile.
"""
