"""Marks on everything that a network has made, so that only that is removed, also after a crash.

    mark = PID.START.NAMESPACE of the process that builds a network (the owner)

    interfaces    their alias is switchagg-topo:MARK           ip -j link
    processes     SWITCHAGG_TOPO=MARK is in their environment  /proc/PID/environ, inherited by what they start
    a folder      switchagg-topo-MARK in the folder for temporary files

The owner starts a guardian, this file as a program, which holds one end of a pipe: when the owner has ended,
in whatever way, the guardian removes the remains. If the guardian was killed too, `stale` finds the remains
and `remove` removes them. Process ids are reused, so a mark has START, the owner's start in clock ticks after
the boot. They differ between namespaces, so the marks of other namespaces never count as stale.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

VARIABLE = "SWITCHAGG_TOPO"
ALIAS = "switchagg-topo:"
FOLDER = "switchagg-topo-"
_GRACE = 3.0  # seconds for processes to be gone after SIGKILL


class Remains(NamedTuple):
    """Everything that carries one mark."""

    mark: str
    interfaces: list[str]
    processes: list[int]
    folder: Path | None

    def __str__(self) -> str:
        parts = []
        if self.interfaces:
            parts.append("interfaces " + ", ".join(self.interfaces))
        if self.processes:
            parts.append("processes " + ", ".join(map(str, self.processes)))
        if self.folder is not None:
            parts.append(f"folder {self.folder}")
        return f"of process {self.mark.split('.')[0]}: " + ("; ".join(parts) or "nothing")


class _Owned:
    """State of this process as an owner."""

    mark = ""
    guardian: subprocess.Popen | None = None  # type: ignore[type-arg]
    pid = 0


def own() -> str:
    """Returns this process's mark; the first call starts the guardian."""
    if _Owned.pid != os.getpid():
        _Owned.pid = os.getpid()
        _Owned.mark = mark_of(os.getpid())
        _Owned.guardian = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), _Owned.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        os.environ[VARIABLE] = _Owned.mark
        import atexit

        atexit.register(release)
    return _Owned.mark


def release() -> None:
    """Removes everything that carries this process's mark, and ends the guardian. Safe to call twice."""
    if _Owned.pid != os.getpid() or _Owned.guardian is None:
        return
    guardian, _Owned.guardian, _Owned.pid = _Owned.guardian, None, 0
    os.environ.pop(VARIABLE, None)
    assert guardian.stdin is not None
    guardian.stdin.close()
    guardian.wait()


def folder() -> Path:
    """Returns this process's folder, which is removed with the rest."""
    made = Path(tempfile.gettempdir()) / (FOLDER + own())
    made.mkdir(mode=0o700, exist_ok=True)
    return made


def mark_of(pid: int) -> str:
    """Returns the mark of a running process."""
    return f"{pid}.{_started(pid)}.{_namespace()}"


def claim(interface: str) -> None:
    """Puts this process's mark on an interface of this namespace."""
    subprocess.run(["ip", "link", "set", "dev", interface, "alias", ALIAS + own()], check=True)


def interfaces() -> dict[str, str]:
    """Returns the interfaces of this namespace with their marks; empty for others' interfaces."""
    listed = subprocess.run(["ip", "-j", "link"], check=True, stdout=subprocess.PIPE).stdout
    found = {}
    for each in json.loads(listed or b"[]"):
        alias = str(each.get("ifalias", ""))
        found[str(each["ifname"])] = alias[len(ALIAS) :] if alias.startswith(ALIAS) else ""
    return found


def stale() -> list[Remains]:
    """Returns the remains of owners that have ended."""
    return [each for each in _remains() if not _alive(each.mark)]


def remove(mark: str) -> Remains:
    """Removes everything that carries a mark, except this process. Returns what was removed."""
    gone_processes: set[int] = set()
    gone_interfaces: set[str] = set()
    where: Path | None = None
    end = time.monotonic() + _GRACE
    while True:
        left = next((each for each in _remains() if each.mark == mark), None)
        if left is None:
            break
        for pid in left.processes:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for name in left.interfaces:
            # The other end of a pair goes with it.
            subprocess.run(["ip", "link", "delete", "dev", name], check=False, stderr=subprocess.DEVNULL)
        if left.folder is not None:
            shutil.rmtree(left.folder, ignore_errors=True)
        gone_processes.update(left.processes)
        gone_interfaces.update(left.interfaces)
        where = left.folder or where
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return Remains(mark, sorted(gone_interfaces), sorted(gone_processes), where)


def _remains() -> list[Remains]:
    names: dict[str, list[str]] = {}
    pids: dict[str, list[int]] = {}
    folders: dict[str, Path] = {}
    for name, mark in interfaces().items():
        if mark:
            names.setdefault(mark, []).append(name)
    for pid, mark in _processes():
        pids.setdefault(mark, []).append(pid)
    for path in Path(tempfile.gettempdir()).glob(FOLDER + "*"):
        folders[path.name[len(FOLDER) :]] = path
    return [
        Remains(mark, sorted(names.get(mark, [])), sorted(pids.get(mark, [])), folders.get(mark))
        for mark in sorted({*names, *pids, *folders})
    ]


def _processes() -> Iterator[tuple[int, str]]:
    wanted = f"{VARIABLE}=".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for each in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                if each.startswith(wanted):
                    yield int(entry), each[len(wanted) :].decode(errors="replace")


def _alive(mark: str) -> bool:
    """Returns False if a mark's owner has ended, True if it runs or cannot be known."""
    parts = mark.split(".")
    if len(parts) != 3 or parts[2] != _namespace() or not parts[0].isdigit():
        return True
    try:
        return _started(int(parts[0])) == parts[1]
    except OSError:
        return False


def _started(pid: int) -> str:
    # The name, in brackets, may contain anything.
    status = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    if status[0] in "ZX":
        raise ProcessLookupError(pid)
    return status[19]


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def _guard() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    remove(sys.argv[1])


if __name__ == "__main__":
    _guard()
