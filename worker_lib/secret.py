"""The secret of sealed sums: read from a file or from an inherited descriptor, never shown.

seal="/run/keys/job"   the file's bytes; nobody but its owner may read it
seal="fd:5"            what descriptor 5 holds; it is read once, and closed
seal=True              what SWITCHAGG_SEAL names, one of the two

`switchagg run --seal` gives each rank the second: a pipe of its own, which is empty once it has been read.

A session overwrites its secret and its keys when it is closed. What came through a descriptor stays in this
module, for sessions to come.
"""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from pathlib import Path
from typing import Final

from switchagg.errors import SessionBrokenError, UsageError

LEAST: Final = 16  # bytes
_MOST: Final = 4096
_DESCRIPTOR: Final = re.compile(r"fd:(\d{1,9})")
_inherited: dict[str, Secret] = {}  # by name of the descriptor
_lock = threading.Lock()


class Secret:
    """Bytes that no traceback with local variables, log or pickle shows. False if there are none.

    Args:
        shown: overwritten by `wipe`.
    """

    __slots__ = ("_shown", "_wiped")

    def __init__(self, shown: bytearray) -> None:
        def show() -> bytearray:
            return shown

        self._shown: Final = show
        self._wiped = False

    def show(self) -> bytearray:
        """Returns the bytes, for an engine or a pipe; nobody keeps them in a variable.

        Raises:
            SessionBrokenError: they were wiped, when the session was closed.
        """
        if self._wiped:
            raise SessionBrokenError("the session is closed, and its secret was wiped; connect again")
        return self._shown()

    def wipe(self) -> None:
        """Overwrites the bytes with zeros, for good."""
        self._wiped = True
        self._shown()[:] = bytes(len(self))

    def copy(self) -> Secret:
        """Returns another one with the same bytes, which `wipe` leaves as they are."""
        return Secret(self.show().copy())

    def __len__(self) -> int:
        return len(self._shown())

    def __repr__(self) -> str:
        return f"<{len(self)} secret bytes>"

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def read_secret(seal: bool | str | os.PathLike[str] | None) -> Secret:
    """Returns the secret; an empty one if nothing asks for sealed sums.

    Args:
        seal: True: as SWITCHAGG_SEAL says; None: so too, if that is set; False: no.

    Raises:
        UsageError: no secret is named, or it cannot be read, is too short, or others may read it.
    """
    named: str | os.PathLike[str] | None = os.environ.get("SWITCHAGG_SEAL") or None
    if seal is False or (seal is None and named is None):
        return Secret(bytearray())
    if not isinstance(seal, bool | str | os.PathLike | None):
        raise UsageError(f"seal is {seal!r}; accepted: True, False, the path of a file, or 'fd:N'")
    if not isinstance(seal, bool) and seal is not None:
        named = seal
    if named is None:
        raise UsageError(
            "seal is True and SWITCHAGG_SEAL is not set; accepted: the path of a file with the secret, or "
            "'fd:N', an inherited descriptor"
        )
    where = os.fspath(named)
    match = _DESCRIPTOR.fullmatch(where)
    try:
        secret = _from_file(Path(where)) if match is None else _from_descriptor(where, int(match[1]))
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"the secret of sealed sums, {where!r}, cannot be read: {why}") from None
    if not LEAST <= len(secret) <= _MOST:
        secret.wipe()
        raise UsageError(f"the secret in {where} has {len(secret)} bytes; accepted: {LEAST} to {_MOST:,}")
    return secret


def _from_file(path: Path) -> Secret:
    with path.open("rb", buffering=0) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise UsageError(f"the secret in {path} has mode {mode:03o}; accepted: 600 or 400")
        return _read(file)


def _from_descriptor(name: str, number: int) -> Secret:
    with _lock:
        if name not in _inherited:
            with os.fdopen(number, "rb", buffering=0) as file:
                _inherited[name] = _read(file)
        return _inherited[name].copy()


def _read(file: io.FileIO, most: int = _MOST + 1) -> Secret:
    """Reads a file to its end, or so many bytes, without another copy in memory."""
    secret = Secret(bytearray(most))
    size = 0
    with memoryview(secret.show()) as room:
        while read := file.readinto(room[size:]):
            size += read
    read_so_far = Secret(secret.show()[:size])
    secret.wipe()
    return read_so_far


def fresh_secret() -> Secret:
    """Returns 32 random bytes."""
    with Path("/dev/urandom").open("rb", buffering=0) as file:
        return _read(file, 32)


def hand_on(secret: Secret) -> int:
    """Returns a descriptor that holds the secret, for one child to inherit; the caller closes its own."""
    reads, writes = os.pipe()  # a pipe takes 4,096 bytes whole, and at once
    os.write(writes, secret.show())
    os.close(writes)
    return reads
