"""Builds the native modules with sanitizers, in a folder of their own, and runs tests with them."""

from __future__ import annotations

import sys

from tests.native.building import ROOT
from tests.native.sanitized.build import TESTS, build, run


def main() -> int:
    """Returns pytest's exit status. Arguments are pytest's, and take the place of `TESTS`."""
    folder = ROOT / "build" / "sanitize"
    build(folder)
    return run(folder, sys.argv[1:] or TESTS).returncode


if __name__ == "__main__":
    sys.exit(main())
