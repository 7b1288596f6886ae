"""`switchagg experiment`: claims of the field, each checked through the real switch with real processes.

    cli -> catalog.py ── claims/NAME.py, a file a claim:  EXPERIMENT = Experiment(name, claim, source, run)
             └─> lab.py: run(lab) ─┬─ switchagg host      controller and switch, links of a given rate
                                   └─ rank.py  x n        a function of the claim's file, in a session
             └─> record.py ──> text.py, page.py (report.html), pictures.py      index.html, PNGs, results.json

base.py has what a claim's file is made of: `Experiment`, `Outcome`, `Check`, `Table`, `Plot`.
"""
