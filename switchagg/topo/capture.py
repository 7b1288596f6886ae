"""Captures the frames of interfaces into pcap files, NAME.pcap, both ways, with the kernel's times.

    python -m switchagg.topo.capture FOLDER INTERFACE ...

Prints "ready" when it captures. When its standard input ends it prints the numbers of frames written and
missed, as JSON. It begins to miss frames at some 100,000 a second.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from switchagg.emulator.packet_socket import open_buffered, whole
from switchagg.errors import SwitchAggError, SwitchError, UsageError

# Classic pcap with nanoseconds; link type 1 is Ethernet.
_FILE: Final = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1)
_RECORD: Final = struct.Struct("<IIII")
_SO_TIMESTAMPNS: Final = 35
_TIME: Final = struct.Struct("=qq")
_BUFFER: Final = 32 << 20
_SOL_PACKET: Final = 263
_STATISTICS: Final = 6
_BATCH: Final = 256


class Tap:
    """An interface and its file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.socket = open_buffered(name, _BUFFER)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._file: BinaryIO = (folder / f"{name}.pcap").open("wb")
        self._file.write(_FILE)
        self.frames = 0
        self.missed = 0

    def take(self) -> bool:
        """Writes the frames that have come, a batch at most. Returns whether there was one."""
        for turn in range(_BATCH):
            try:
                frame, ancillary, _, _ = self.socket.recvmsg(1 << 17, 256)
            except OSError:  # no more frames, or the interface went down
                return turn > 0
            seconds = nanoseconds = 0
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                    seconds, nanoseconds = _TIME.unpack_from(data)
            frame = whole(frame, ancillary)
            self._file.write(_RECORD.pack(seconds, nanoseconds, len(frame), len(frame)) + frame)
            self.frames += 1
        return True

    def close(self) -> dict[str, int]:
        """Writes the rest and closes the file. Returns the numbers of frames and of missed ones."""
        while self.take():
            pass
        _, self.missed = struct.unpack("=II", self.socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        self.socket.close()
        self._file.close()
        return {"frames": self.frames, "missed": self.missed}


@contextmanager
def captured(folder: Path, interfaces: Sequence[str]) -> Iterator[None]:
    """Captures each interface into a file of its name in `folder`, while the context lasts.

    Raises `UsageError` where the folder cannot be made, `SwitchError` where the capture does not start.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"pcap: {folder}: {error.strerror}; accepted: a folder") from None
    process = subprocess.Popen(
        [sys.executable, "-m", "switchagg.topo.capture", str(folder.absolute()), *interfaces],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if not process.stdout.readline():
        process.wait()
        raise SwitchError(f"no capture in {folder}")
    try:
        yield
    finally:
        process.stdin.close()
        said = json.loads(process.stdout.readline() or "{}")
        process.stdout.close()
        process.wait()
        missed = {name: each["missed"] for name, each in said.items() if each["missed"]}
        if missed:
            print(f"switchagg topo: the captures lack frames that came too fast: {missed}", file=sys.stderr)


def main(folder: Path, names: list[str]) -> None:
    """Captures until standard input ends."""
    taps = {name: Tap(folder, name) for name in names}
    sources = {tap.socket.fileno(): tap for tap in taps.values()}
    print("ready", flush=True)
    while True:
        ready: list[int] = select.select([0, *sources], [], [])[0]
        if 0 in ready:
            break
        for each in ready:
            sources[each].take()
    print(json.dumps({name: tap.close() for name, tap in taps.items()}), flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except (SwitchAggError, OSError) as error:
        print(f"switchagg topo: capture: {error}", file=sys.stderr)
        sys.exit(1)
