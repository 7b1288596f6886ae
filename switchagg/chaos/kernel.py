"""The kernel's means to disturb a process: filters on its sockets, and a small disk that only it and we see.

Nothing here changes the machine. A filter belongs to a socket and ends with it; a mount is in a namespace of
this process and its children, and ends with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_PIDFD_GETFD: Final = 438
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_CLONE_NEWNS: Final = 0x20000
_MS_PRIVATE: Final = 1 << 18
_MS_REC: Final = 1 << 14
_MNT_DETACH: Final = 2

# Classic BPF: code, jump if true, jump if false, operand. The result is the number of bytes to keep.
_Instruction = tuple[int, int, int, int]
_DROP: Final[_Instruction] = (0x06, 0, 0, 0)
_KEEP: Final[_Instruction] = (0x06, 0, 0, 0xFFFFFFFF)
_LOAD_LENGTH: Final[_Instruction] = (0x80, 0, 0, 0)
_LOAD_RANDOM: Final[_Instruction] = (0x20, 0, 0, 0xFFFFF000 + 56)
_UDP_HEADER: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)


def lose(probability: float) -> list[_Instruction]:
    """Returns the filter of a socket that loses this share of what arrives; 1 loses everything."""
    if probability >= 1:
        return [_DROP]
    return [_LOAD_RANDOM, (0x35, 1, 0, int(probability * 2**32)), _DROP, _KEEP]


def lose_longer(payload: int) -> list[_Instruction]:
    """Returns the filter of a socket that loses datagrams of more than `payload` bytes."""
    return [_LOAD_LENGTH, (0x25, 0, 1, payload + _UDP_HEADER), _DROP, _KEEP]


class SocketFilter:
    """A filter on all IPv4 UDP sockets that a process has open now. Processes of the same user only.

    Raises `OSError` where the kernel, or a sandbox round this process, does not allow it.
    """

    def __init__(self, pid: int, program: Sequence[_Instruction]) -> None:
        self._sockets = udp_sockets(pid)
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
        for each in self._sockets:
            given = struct.pack("HP", len(program), ctypes.addressof(code))
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, given)

    def remove(self) -> None:
        """Lets everything pass again."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            each.close()
        self._sockets = []


def udp_sockets(pid: int) -> list[socket.socket]:
    """Returns duplicates of the IPv4 UDP sockets of a process. Raises `OSError` where that is not allowed."""
    found = []
    pidfd = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not os.readlink(entry).startswith("socket:"):
                    continue
            except FileNotFoundError:  # closed meanwhile
                continue
            descriptor = _libc.syscall(_PIDFD_GETFD, pidfd, int(entry.name), 0)
            if descriptor < 0:
                if ctypes.get_errno() == 9:  # EBADF: closed meanwhile
                    continue
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            each = socket.socket(fileno=descriptor)
            if each.family == socket.AF_INET and each.type == socket.SOCK_DGRAM:
                found.append(each)
            else:
                each.close()
    finally:
        os.close(pidfd)
    return found


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Has an empty disk of `size` bytes at a folder, which only this process and its children see.

    For the main thread, before there are others. Raises `OSError` where that is not allowed: it needs root.
    """
    there = os.fsencode(folder)
    if (
        _libc.unshare(_CLONE_NEWNS) != 0
        or _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0
        or _libc.mount(b"tmpfs", there, b"tmpfs", 0, f"size={size}".encode()) != 0
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    try:
        yield
    finally:
        _libc.umount2(there, _MNT_DETACH)


class FullDisk:
    """A file that takes what is left of a disk, until `remove`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "fill"
        with self._file.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 16, 1 << 9, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def remove(self) -> None:
        """Frees the disk."""
        self._file.unlink(missing_ok=True)
