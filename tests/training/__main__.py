"""Runs the comparison and judges it. Exit status 1: ranks differed, or 32-bit lanes led away from gloo."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec

from switchagg.control.embedded import EmbeddedController
from tests.training.compare import MODELS, SYSTEMS, compare
from tests.training.report import HEAD, table
from tests.training.verdict import complaints
from tests.worker_lib.torch import worlds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--model", choices=list(MODELS), action="append", help="all by default")
    parser.add_argument("--limit", type=float, default=3000, help="seconds for a model (%(default)s)")
    args = parser.parse_args()
    wrong = []
    print(HEAD, flush=True)
    with EmbeddedController() as host:
        worlds.shared_controller = host.url
        for model in args.model or MODELS:
            if model == "classifier" and find_spec("sklearn") is None:
                print("classifier: needs scikit-learn, pip install 'switchagg[examples]'", file=sys.stderr)
                wrong.append("classifier: not run")
                continue
            outcomes = worlds.run(
                args.ranks,
                compare,
                model,
                args.steps,
                SYSTEMS,
                backend="gloo",
                timeout=120.0,
                limit=args.limit,
            )
            print(table(model, outcomes[0]), flush=True)
            wrong += [f"{model}: {each}" for each in complaints(outcomes[0])]
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
