"""The store on a disk that fails: errors, no space, torn writes, stalls, and kills at every write.

A library that is preloaded stands between SQLite and the kernel, and lets the n-th write or sync of the
database fail. Each case is a forked child, which writes steps until it is killed or done.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from switchagg.control.store import Store

SHIM: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { NOTHING, IO_ERROR, NO_SPACE, TORN, KILLED, STALLED };
static int mode, left, times;
void fail_at(int which, int n, int how_often) { mode = which; left = n; times = how_often; }
int failures_left(void) { return times; }

static int hits(int fd) {
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  if (!mode || !strstr(path, "controller.db") || strstr(path, "-shm")) return 0;
  if (left > 1) { --left; return 0; }
  if (times == 0) return 0;
  --times;
  return 1;
}
typedef ssize_t (*write_at)(int, const void *, size_t, off64_t);
static ssize_t faulty(int fd, const void *data, size_t size, off64_t at) {
  static write_at real;
  if (!real) real = (write_at)dlsym(RTLD_NEXT, "pwrite64");
  if (hits(fd)) {
    if (mode == IO_ERROR) { errno = EIO; return -1; }
    if (mode == NO_SPACE) { errno = ENOSPC; return -1; }
    if (mode == TORN) { real(fd, data, size / 2, at); _exit(9); }
    if (mode == KILLED) _exit(9);
    if (mode == STALLED) usleep(300000);
  }
  return real(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return faulty(fd, data, size, at); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return faulty(fd, data, size, at); }
static int sync_of(const char *name, int fd) {
  if (hits(fd)) {
    if (mode == IO_ERROR) { errno = EIO; return -1; }
    if (mode == TORN || mode == KILLED) _exit(9);
    if (mode == STALLED) usleep(300000);
  }
  return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}
int fsync(int fd) { return sync_of("fsync", fd); }
int fdatasync(int fd) { return sync_of("fdatasync", fd); }
"""
STEPS: Final = 8
MODES: Final = {"io error": 1, "no space": 2, "torn": 3, "killed": 4, "stalled": 5}
POSITIONS: Final = 24  # writes and syncs of all steps, and some more

CHILD: Final = """
import ctypes, json, os, sys
from pathlib import Path
from switchagg.control.store import Changes, Store
from switchagg.errors import SwitchError
shim = ctypes.CDLL(sys.argv[1])
folder, steps, positions = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

def write(where, mode, position):
    store = Store(where)
    with (where / "log").open("w") as log:
        shim.fail_at(mode, position, 2)
        for step in range(1, steps + 1):
            for attempt in range(4):
                try:
                    # Each step replaces the job of the last but one, so that it needs all of its parts.
                    jobs = {step: {"step": step, "text": "x" * 3000}, step - 2: None}
                    store.write(Changes(jobs, (), {f"s{step}": True}, step, step))
                    print("kept", step, file=log, flush=True)
                    break
                except SwitchError as error:
                    print("failed", step, error, file=log, flush=True)
        if position % 3 == 0:
            os._exit(0)  # killed, without a checkpoint
        store.close()
    os._exit(0)

for name, mode in json.loads(sys.argv[5]).items():
    for position in range(1, positions + 1):
        where = folder / f"{name} {position}"
        where.mkdir(mode=0o700)
        if (child := os.fork()) == 0:
            write(where, mode, position)
        os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("disk")
    source, shim = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", shim, "-ldl"], check=True)
    words = [sys.executable, "-c", CHILD, shim, folder, str(STEPS), str(POSITIONS), json.dumps(MODES)]
    subprocess.run([*map(str, words)], check=True, env={**os.environ, "LD_PRELOAD": str(shim)})
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_a_store_holds_whole_steps_whatever_the_disk_did(mode: str, folders: Path) -> None:
    """Nothing that was kept is missing, and no step is there in part."""
    told = 0
    for position in range(1, POSITIONS + 1):
        where = folders / f"{mode} {position}"
        log = (where / "log").read_text().splitlines()
        (where / "log").unlink()
        kept = [int(line.split()[1]) for line in log if line.startswith("kept")]
        failed = [line for line in log if line.startswith("failed")]
        told += bool(failed) or len(kept) < STEPS
        store = Store(where)
        try:
            found: Any = store.load()
        finally:
            store.close()
        last = found.last_number
        assert last >= max(kept, default=0), (position, log)
        assert set(found.jobs) == {step for step in (last - 1, last) if step > 0}, (position, log)
        assert all(document == {"step": step, "text": "x" * 3000} for step, document in found.jobs.items())
        assert found.switches == {f"s{step}": True for step in range(1, last + 1)}
        if mode in ("io error", "no space", "stalled"):
            assert (last, kept[-1]) == (STEPS, STEPS), (position, log)  # it goes on when the disk does
        if failed:
            assert "state directory" in failed[0]
    if mode != "stalled":
        assert told > 5, "the disk has hardly failed"
