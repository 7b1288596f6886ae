"""Builds the fuzzer and runs its targets, one after another."""

from __future__ import annotations

import argparse
import secrets
import shutil
import subprocess
import sys

from tests.native.building import ROOT
from tests.native.fuzz.build import HERE, TARGETS, build


def main() -> int:
    """Returns 1 where a sanitizer has found something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=1_000_000, help="of each target (%(default)s)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of them; all by default")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    options = parser.parse_args()
    folder = ROOT / "build" / "fuzz"
    program = build(folder)
    print(f"seed {options.seed}", flush=True)
    for target in options.target or TARGETS:
        corpus = folder / "corpus" / target
        shutil.copytree(HERE / "corpus" / target, corpus, dirs_exist_ok=True)
        words = [
            program,
            target,
            corpus,
            "--executions",
            str(options.executions),
            "--seed",
            str(options.seed),
        ]
        if subprocess.run(words, cwd=folder, check=False).returncode:
            print(f"{target} has failed; run it again with: {program} {target} {folder}/crash-{target}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
