"""No secret and no key of a sealed session is in the memory of its process once it is closed."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import worker_lib
from tests.reference import seal
from tests.worker_lib.harness import Process, in_threads, job_name, say
from tests.worker_lib.test_check import packed
from tests.worker_lib.test_hostile import SLOTS, WORDS, Acts, hosted
from worker_lib.secret import Secret, fresh_secret, read_secret

RANKS: Final = 2
_LIMIT: Final = 60.0  # seconds


def until(path: str) -> None:
    """Waits for a file."""
    limit = time.monotonic() + _LIMIT
    while not Path(path).exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def ranks(url: str, job: str, secret: str, folder: str) -> None:
    """Both ranks of a job, in this process: open until a file says so, then closed until another one does."""

    def rank(r: int) -> None:
        with worker_lib.connect(
            url, job, r, RANKS, timeout=60, deadline=60, seal=secret, words=WORDS, slots=SLOTS
        ) as session:
            assert (session.allreduce(np.ones(1000, np.float32)) == RANKS).all()
            session.barrier()
            if r == 0:
                say("open")
            until(f"{folder}/close")

    for each in in_threads([lambda r=r: rank(r) for r in range(RANKS)]):
        each.get()
    gc.collect()
    say("closed")
    until(f"{folder}/end")


def found(pid: int, what: bytes) -> bool:
    """True if a process has these bytes in memory that it may write to."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, mode, *_ = line.split()
            if not mode.startswith("rw"):
                continue
            begin, end = (int(each, 16) for each in place.split("-"))
            try:
                memory.seek(begin)
                if what in memory.read(end - begin):
                    return True
            except OSError:  # of a device
                continue
    return False


def test_keys_are_gone_when_sessions_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(fresh_secret().show())
    path.chmod(0o600)
    lies = Acts()
    lies.sealed = True  # keeps all sums, of which the second packet has the nonces
    with hosted() as host:
        host.switch.lies = lies
        with Process(ranks, host.server.url, job_name(), str(path), str(tmp_path)) as process:
            assert process.hear() == "open"
            nonces = packed(lies.results[1])
            keys = seal.Keys(path.read_bytes(), [nonces[16 * r : 16 * r + 16] for r in range(RANKS)])
            names = {"secret": path.read_bytes(), "pads": keys.pads, "weights": keys.weights}
            assert [name for name, key in names.items() if found(process.pid, key)] == list(names)
            (tmp_path / "close").touch()
            assert process.hear() == "closed"
            assert [name for name, key in names.items() if found(process.pid, key)] == []
            (tmp_path / "end").touch()
            process.finish().get()


def test_a_secret_is_overwritten_and_not_used_again() -> None:
    shown = bytearray(b"a secret of some bytes")
    secret = Secret(shown)
    copy = secret.copy()
    secret.wipe()
    assert shown == bytes(len(shown))
    assert copy.show() == b"a secret of some bytes"
    for use in (secret.show, secret.copy):
        with pytest.raises(worker_lib.SwitchAggError, match="its secret was wiped"):
            use()


@pytest.mark.parametrize("size", [16, 4096])
def test_a_secret_from_a_file_is_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "secret"
    content = np.random.default_rng(size).bytes(size)
    path.write_bytes(content)
    path.chmod(0o600)
    assert read_secret(str(path)).show() == content
