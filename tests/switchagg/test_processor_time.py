"""Processor time: of this process, its children, and everybody."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from switchagg.processor_time import everybody_seconds, family_seconds, own_seconds, process_seconds

TICK = 1 / os.sysconf("SC_CLK_TCK")


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_ones_own_work_is_counted_everywhere() -> None:
    counters = (own_seconds, family_seconds, lambda: process_seconds(os.getpid()), everybody_seconds)
    before = [count() for count in counters]
    burn(0.2)
    *mine, everybody = [count() - start for count, start in zip(counters, before, strict=True)]
    assert all(each >= 0.2 - 2 * TICK for each in mine)
    assert everybody >= 0.05  # the kernel looks once in a tick at who runs


def test_a_childs_work_is_the_familys_once_it_has_ended() -> None:
    family, own = family_seconds(), own_seconds()
    work = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert family_seconds() - family >= 0.2 - TICK
    assert family_seconds() - family > own_seconds() - own + 0.1


def test_a_process_that_is_gone_has_used_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert process_seconds(child.pid) == 0.0
