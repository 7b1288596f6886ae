"""`switchagg experiment`: claims of the field, each checked through the real switch with real processes.

    cli -> catalogue.py ─── claims/NAME.py, a file a claim:  EXPERIMENT = Experiment(name, claim, source, run)
             └─> runner.py: run(runner) ─┬─ switchagg host      controller and switch, links of a given rate
                                         └─ rank.py  x n        a function of the claim's file, in a session
             └─> report.py      text, index.html, PNGs, results.json

Claims on convex methods share convex.py (runs) and data.py (data sets as problems).
"""
