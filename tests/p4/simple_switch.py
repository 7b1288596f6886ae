"""bmv2's `simple_switch` as a device, where it is installed.

    tests --Thrift, TCP--> runtime server     tables, groups, counters, registers
    tests <--nanomsg pair, IPC--> ports       frames in and out, without interfaces or privileges

Which packets a frame gave rise to is known when frames sent after it have come back: ARP requests, one for
each of its egress threads, each of which keeps its order.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.p4program.program import MulticastGroup, SwitchAddress, TableEntry, Target

from .device_under_test import Frame
from .thrift import I32, LIST, STRING, STRUCT, Client

_EGRESS_THREADS: Final = 4
_PACKET_IN: Final = 3
_PACKET_OUT: Final = 4
_MESSAGE: Final = struct.Struct("<iii")
_PAIR: Final = b"\0SP\0\0\x10\0\0"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Ports:
    """The switch's end for frames: nanomsg's pair protocol over a Unix socket."""

    def __init__(self, path: str, process: subprocess.Popen[bytes]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 60
        while True:
            try:
                self._socket.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.02)
        self._socket.settimeout(60)
        self._socket.sendall(_PAIR)
        self._stream = self._socket.makefile("rb")
        assert self._stream.read(8) == _PAIR

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, port: int, frame: bytes) -> None:
        body = _MESSAGE.pack(_PACKET_IN, port, len(frame)) + frame
        self._socket.sendall(b"\x01" + struct.pack(">Q", len(body)) + body)

    def receive(self) -> Frame:
        while True:
            _, size = struct.unpack(">BQ", self._stream.read(9))
            body = self._stream.read(size)
            kind, port, length = _MESSAGE.unpack_from(body)
            if kind == _PACKET_OUT:
                return port, body[_MESSAGE.size : _MESSAGE.size + length]


def _bytes(value: int, bits: int) -> bytes:
    return value.to_bytes((bits + 7) // 8, "big")


class SimpleSwitch:
    """A `simple_switch` process with a program that p4c compiled.

    Args:
        program: the JSON that p4c-bm2-ss wrote.
        folder: for sockets and logs.
        address: the switch's; it must have been told to answer ARP requests for it before the first `send`.
    """

    def __init__(
        self, binary: str, program: Path, target: Target, address: SwitchAddress, folder: Path
    ) -> None:
        self.target = target
        self._address = address
        self._describe(json.loads(program.read_text()))
        self._handles: dict[int, tuple[TableEntry, int]] = {}
        self._nodes: dict[int, list[int]] = {}
        port = _free_port()
        path = folder / "ports.ipc"
        self._log = (folder / "simple_switch.log").open("wb")
        self._process = subprocess.Popen(
            [
                binary,
                *("--packet-in", f"ipc://{path}"),
                *("--notifications-addr", f"ipc://{folder / 'notifications.ipc'}"),
                *("--thrift-port", str(port)),
                str(program),
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            self._ports = _Ports(str(path), self._process)
            self._client = self._connect(port)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _connect(self, port: int) -> Client:
        deadline = time.monotonic() + 60
        while True:
            try:
                return Client(port)
            except ConnectionRefusedError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    def close(self) -> None:
        self._ports.close()
        self._client.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _describe(self, program: dict[str, Any]) -> None:
        headers = {each["name"]: each["header_type"] for each in program["headers"]}
        widths = {
            (kind["name"], name): width
            for kind in program["header_types"]
            for name, width, *_ in kind["fields"]
        }
        self._actions = {
            (each["id"]): (each["name"], [(data["name"], data["bitwidth"]) for data in each["runtime_data"]])
            for each in program["actions"]
        }
        self._tables: dict[str, tuple[list[tuple[str, str, int]], list[int]]] = {}
        for pipeline in program["pipelines"]:
            for table in pipeline["tables"]:
                keys = []
                for key in table["key"]:
                    header, name = key["target"]
                    width = 1 if name == "$valid$" else widths[headers[header], name]
                    keys.append((key["name"], key["match_type"], width))
                self._tables[table["name"]] = keys, table["action_ids"]

    def _action(self, table: str, action: str, params: dict[str, int]) -> tuple[str, list[bytes]]:
        for number in self._tables[table][1]:
            name, wanted = self._actions[number]
            if name.split(".")[-1] == action:
                assert params.keys() == {each for each, _ in wanted}, f"{name} has {wanted}, given {params}"
                return name, [_bytes(params[each], width) for each, width in wanted]
        raise KeyError(f"{table} has no action {action}")

    def _call(self, method: str, *arguments: tuple[int, int, Any], service: str = "standard") -> Any:
        return self._client.call(service, method, [(1, I32, 0), *arguments])

    def insert(self, entry: TableEntry) -> None:
        matches = dict(entry.matches)
        params = []
        for name, kind, width in self._tables[entry.table][0]:
            match = matches.pop(name, None)
            if kind == "exact":
                assert isinstance(match, Exact), f"{entry.table} needs {name}"
                params.append([(1, I32, 0), (2, STRUCT, [(1, STRING, _bytes(match.value, width))])])
            elif kind == "range":
                assert isinstance(match, Range), f"{entry.table} needs {name}"
                ends = [(1, STRING, _bytes(match.low, width)), (2, STRING, _bytes(match.high, width))]
                params.append([(1, I32, 4), (6, STRUCT, ends)])
            else:
                assert kind == "ternary"
                assert match is None or isinstance(match, Ternary)
                value, mask = (match.value, match.mask) if match else (0, 0)
                fields = [(1, STRING, _bytes(value, width)), (2, STRING, _bytes(mask, width))]
                params.append([(1, I32, 2), (4, STRUCT, fields)])
        assert not matches, f"{entry.table} has no {list(matches)}"
        name, data = self._action(entry.table, entry.action, dict(entry.params))
        handle = self._call(
            "bm_mt_add_entry",
            (2, STRING, entry.table),
            (3, LIST, (STRUCT, params)),
            (4, STRING, name),
            (5, LIST, (STRING, data)),
            (6, STRUCT, [(1, I32, 1000 - entry.priority)]),  # bmv2's smaller number wins
        )
        self._handles[id(entry)] = entry, handle

    def delete(self, entry: TableEntry) -> None:
        _, handle = self._handles.pop(id(entry))
        self._call("bm_mt_delete_entry", (2, STRING, entry.table), (3, I32, handle))

    def set_default(self, table: str, action: str, params: dict[str, int]) -> None:
        name, data = self._action(table, action, params)
        arguments = (3, STRING, name), (4, LIST, (STRING, data))
        self._call("bm_mt_set_default_action", (2, STRING, table), *arguments)

    def insert_group(self, group: MulticastGroup) -> None:
        self._call("bm_mc_mgrp_create", (2, I32, group.group), service="simple_pre_lag")
        nodes = self._nodes[group.group] = []
        for port, rid in group.replicas:
            ports = "1" + "0" * port  # bmv2 reads it from the right
            copy = (2, I32, rid), (3, STRING, ports), (4, STRING, "")
            node = self._call("bm_mc_node_create", *copy, service="simple_pre_lag")
            member = (2, I32, group.group), (3, I32, node)
            self._call("bm_mc_node_associate", *member, service="simple_pre_lag")
            nodes.append(node)

    def delete_group(self, group: MulticastGroup) -> None:
        for node in self._nodes.pop(group.group):
            self._call("bm_mc_node_destroy", (2, I32, node), service="simple_pre_lag")
        self._call("bm_mc_mgrp_destroy", (2, I32, group.group), service="simple_pre_lag")

    def entry_packets(self, entry: TableEntry) -> int:
        _, handle = self._handles[id(entry)]
        value = self._call("bm_mt_read_counter", (2, STRING, entry.table), (3, I32, handle))
        return int(value[2])

    def cell(self, counter: str, index: int) -> int:
        return int(self._call("bm_counter_read", (2, STRING, counter), (3, I32, index))[2])

    def slot(self, index: int) -> tuple[int, int, int, list[int]]:
        def read(name: str) -> int:
            return int(self._call("bm_register_read", (2, STRING, f"SwitchIngress.{name}"), (3, I32, index)))

        words = [read(f"words.word_{i}") for i in range(self.target.words)]
        return read("seq"), read("missing"), read("filled") & 1, words

    def send(self, port: int, frame: bytes) -> list[Frame]:
        self._ports.send(port, frame)
        probes = {}
        for probe_port in range(_EGRESS_THREADS):
            mark = os.urandom(6)
            probes[mark] = probe_port
            self._ports.send(probe_port, self._probe(mark))
        frames = []
        while probes:
            port, data = self._ports.receive()
            if data[12:14] == b"\x08\x06" and data[:6] in probes:
                del probes[data[:6]]
            else:
                frames.append((port, data))
        return frames

    def _probe(self, mark: bytes) -> bytes:
        asked = socket.inet_aton(self._address.ip)
        request = struct.pack(">HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, mark, bytes(4), bytes(6), asked)
        return (b"\xff" * 6 + mark + b"\x08\x06" + request).ljust(60, b"\0")
