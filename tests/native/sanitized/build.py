"""Builds the native modules with sanitizers and runs tests with them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.native.building import ROOT

HERE: Final = Path(__file__).parent
FLAGS: Final = (
    "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined "
    "-fno-sanitize=vptr -fno-sanitize-recover=all"
)
