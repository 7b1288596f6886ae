"""Cores of this computer, for tests of what runs on them."""

from __future__ import annotations

import os

import pytest

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
