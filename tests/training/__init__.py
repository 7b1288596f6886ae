"""`make training`: the examples' models trained by gloo and by the switch, beside each other, step by step.

    python -m tests.training --ranks 4 --steps 500

`compare` runs on every rank; `report` makes the table of docs/pytorch.md.
"""
