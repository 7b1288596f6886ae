"""The controller's state folder is its own: nobody else made it, can write to it, or has put a file there.

Without these checks, whoever makes the folder first, as anybody can under /tmp, gets a file that root
writes, and tenants of a database that they have prepared are believed.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from switchagg.errors import UsageError


def claim_folder(folder: Path, names: tuple[str, ...]) -> None:
    """Makes the folder, for this user alone, if it is missing.

    Args:
        names: of files that may be there.

    Raises:
        UsageError: folder or a file is somebody else's, others can write to it, or a file is no plain one.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    link = folder.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid != 0:
        _check(folder, link, "the link")
    _check(folder, folder.stat(), "it")
    for name in names:
        try:
            found = (folder / name).lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise UsageError(f"state directory {folder}: {name} is no plain file of its own: remove it")
        _check(folder, found, name)


def open_own(path: Path) -> int:
    """Opens a file for reading and writing, or makes it for this user alone; follows no link.

    Returns its descriptor. Raises `OSError`.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _check(folder: Path, found: os.stat_result, what: str) -> None:
    me = os.geteuid()
    if found.st_uid != me:
        raise UsageError(
            f"state directory {folder}: {what} belongs to {_user(found.st_uid)}, and this process is "
            f"{_user(me)}'s; run it as that user, or take a folder of your own"
        )
    if not stat.S_ISLNK(found.st_mode) and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"state directory {folder}: others can write to {what} (mode {stat.S_IMODE(found.st_mode):o}); "
            "accepted: this user alone (chmod go-w)"
        )


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
