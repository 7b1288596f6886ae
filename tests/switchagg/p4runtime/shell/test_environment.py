"""p4runtime-shell itself, unmodified, in its environment: the steps of its README with our program."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

from switchagg.cli.main import main
from tests.switchagg.p4runtime.shell.conftest import served_engine

# The shell keeps one connection for the whole process, and leaves by sys.exit: a process of its own.
SCRIPT = r"""
import json, os, sys, traceback
import p4runtime_sh.shell as sh

seen = {}

def number(data):
    return int.from_bytes(data, "big")

def tables_and_actions():
    seen["tables"] = sorted(each.name for each in sh.P4Objects(sh.P4Type.table))
    seen["size"] = sh.P4Objects(sh.P4Type.table)["stations"].size
    forward = sh.P4Objects(sh.P4Type.action)["SwitchIngress.frames.forward"]
    seen["params"] = [each.name for each in forward.params]

def ports():
    return [number(each.msg().action.action.params[0].value) for each in sh.TableEntry("stations").read()]

def an_entry():
    te = sh.TableEntry("SwitchIngress.frames.stations")(action="SwitchIngress.frames.forward")
    te.match["ethernet_destination"] = "02:00:00:00:00:07"
    te.action["port"] = "7"
    te.insert()
    seen["inserted"] = ports()
    te.action["port"] = "9"
    te.modify()
    seen["modified"] = ports()
    try:
        te.insert()
    except Exception as error:
        seen["twice"] = str(error)
    sh.TableEntry("stations").read(lambda each: each.delete())
    seen["deleted"] = ports()
    miss = sh.TableEntry("stations")(action="SwitchIngress.frames.flood", is_default=True)
    miss.action["group"] = "0x1000"
    miss.modify()
    seen["default"] = [number(each.msg().action.action.params[0].value) for each in miss.read()]

def a_direct_counter():
    own = sh.TableEntry("own_source")(action="drop_own_source")
    own.match["ethernet_source"] = "02:00:00:00:00:99&&&ff:ff:ff:ff:ff:ff"
    own.priority = 5
    own.insert()
    count = sh.DirectCounterEntry("SwitchIngress.frames.own_source_packets")
    count.table_entry.match["ethernet_source"] = "02:00:00:00:00:99&&&ff:ff:ff:ff:ff:ff"
    count.table_entry.priority = 5
    seen["direct"] = [each.packet_count for each in count.read()]
    count.packet_count = 42
    count.modify()
    seen["direct modified"] = [each.packet_count for each in count.read()]
    seen["all direct"] = sum(1 for _ in sh.DirectCounterEntry("own_source_packets").read())
    own.delete()

def a_counter():
    cell = sh.CounterEntry("SwitchIngress.outcomes")
    cell.index = 33
    cell.packet_count = 100
    cell.modify()
    seen["cell"] = [(each.index, each.packet_count) for each in cell.read()]
    seen["cells"] = [each.index for each in sh.CounterEntry("outcomes").read() if each.packet_count]
    cell.packet_count = 0
    cell.modify()

def replicas():
    found = [each.msg().multicast_group_entry for each in sh.MulticastGroupEntry(1).read()]
    return [[(each.egress_port, each.instance) for each in group.replicas] for group in found]

def a_group():
    group = sh.MulticastGroupEntry(1)
    group.add(1, 1).add(2, 2)
    group.insert()
    seen["group"] = replicas()
    group.add(3, 3)
    group.modify()
    seen["group modified"] = replicas()
    group.delete()
    try:
        seen["group deleted"] = replicas()
    except Exception as error:
        seen["group deleted"] = str(error)

def packets():
    # An ARP request through the controller's port; the answer comes back there.
    request = bytes.fromhex(
        "ffffffffffff020000000001080600010800060400010200000000010a0000fd0000000000000a0000fe"
    ).ljust(60, bytes(1))
    arp = sh.TableEntry("local")(action="answer_arp")
    arp.match["meta.traffic"] = "1&&&7"
    arp.match["hdr.arp.target_ip"] = "10.0.0.254&&&255.255.255.255"
    arp.priority = 4
    arp.insert()
    reply = sh.TableEntry("arps")(action="arp_reply")
    reply.match["hdr.arp.target_ip"] = "10.0.0.254"
    reply.action["mac"] = "02:00:00:00:00:fe"
    reply.insert()
    coming = sh.PacketIn()
    out = sh.PacketOut(request)
    out.metadata["port"] = "0"
    out.metadata["padding"] = "0"
    out.send()
    got = list(coming.sniff(timeout=5))
    seen["packets"] = [each.packet.payload[6:32].hex() for each in got]
    arp.delete()
    reply.delete()

try:
    sh.setup(device_id=0, grpc_addr=sys.argv[1], election_id=(0, 1))
    for each in (tables_and_actions, an_entry, a_direct_counter, a_counter, a_group, packets):
        each()
    print(json.dumps(seen), flush=True)
    sh.teardown()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # the shell's threads would keep it
"""


@pytest.mark.parametrize("engine", ["p4", "native"])
def test_the_steps_of_its_readme(engine: str, shell_python: Path) -> None:
    with served_engine(engine) as server:
        _check(shell_python, server.address, engine)


def _check(python: Path, server: str, engine: str) -> None:
    run = subprocess.run(
        [python, "-c", textwrap.dedent(SCRIPT), server],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    assert "SwitchIngress.frames.admission.admission" in seen.pop("tables")
    assert "ALREADY_EXISTS" in seen.pop("twice")
    assert seen == {
        "size": 65536 if engine == "native" else 4096,
        "params": ["port"],
        "inserted": [7],
        "modified": [9],
        "deleted": [],
        "default": [0x1000],
        "direct": [0],
        "direct modified": [42],
        "all direct": 1,
        "cell": [[33, 100]],
        "cells": [33],
        "group": [[[1, 1], [2, 2]]],
        "group modified": [[[1, 1], [2, 2], [3, 3]]],
        "group deleted": [],
        # The native engine answers no ARP, and has only INITs to give back.
        "packets": [] if engine == "native" else ["0200000000fe080600010800060400020200000000fe0a0000fe"],
    }


@pytest.mark.long
def test_pip_that_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert main(["shell", "127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert "no environment" in said or "pip cannot install p4runtime-shell" in said
    assert not list((tmp_path / "switchagg").iterdir())


def test_a_cache_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["shell", "127.0.0.1:9"]) == 1
    assert "has to be a folder that can be written" in capsys.readouterr().err
