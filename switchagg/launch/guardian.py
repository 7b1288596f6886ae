"""Kills the children of a parent that was killed: a tiny process beside the parent, which runs this file.

Reads lines from standard input: ``+123`` when process group 123 begins, ``-123`` when it has ended. When the
input closes, it kills the groups that are left. The parent closes the input when it ends, and the kernel does
so when the parent is killed. What the children started ends too, since whole groups are killed.

Imports next to nothing: it lives as long as the parent, and is idle.
"""

import contextlib
import os
import signal


def main() -> None:
    """Runs until standard input closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest = b""
    while chunk := os.read(0, 4096):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"+"):
                groups.add(int(line[1:]))
            else:
                groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
