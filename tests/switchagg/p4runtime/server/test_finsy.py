"""finsy as a client of `switchagg switch --p4runtime`, and the example of docs/switches.md."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import finsy
import pytest

from switchagg.p4program import program
from switchagg.p4runtime.program_source import source_of
from tests.switchagg.p4runtime.server import harness
from tests.switchagg.p4runtime.shell.conftest import served_engine

ARP_REQUEST = bytes.fromhex(
    "ffffffffffff020000000001080600010800060400010200000000010a0000fd0000000000000a0000fe"
).ljust(60, bytes(1))


def drive(address: str, steps: Callable[[finsy.Switch], Awaitable[None]], **options: Any) -> None:
    """Runs steps once finsy has made itself the switch's primary client."""

    async def run() -> None:
        chosen = finsy.SwitchOptions(device_id=0, **options)
        async with asyncio.timeout(240), finsy.Switch("sw1", address, chosen) as switch:
            await steps(switch)

    asyncio.run(run())


def station(mac: int, port: int) -> finsy.P4TableEntry:
    return finsy.P4TableEntry(
        program.STATIONS,
        match=finsy.Match(ethernet_destination=mac),
        action=finsy.Action("SwitchIngress.frames.forward", port=port),
    )


async def ports_of_stations(switch: finsy.Switch) -> list[int]:
    found = []
    async for entry in switch.read(finsy.P4TableEntry(program.STATIONS)):
        assert isinstance(entry.action, finsy.P4TableAction)
        found.append(int(entry.action.args["port"]))
    return found


@pytest.mark.parametrize("engine", ["p4", "native"])
def test_tables_groups_and_counters(engine: str) -> None:
    async def steps(switch: finsy.Switch) -> None:
        assert switch.is_primary
        assert program.ADMISSION in [each.name for each in switch.p4info.tables]

        await switch.write([+station(0x020000000007, 7)])
        assert await ports_of_stations(switch) == [7]
        await switch.write([~station(0x020000000007, 9)])
        assert await ports_of_stations(switch) == [9]
        with pytest.raises(finsy.P4ClientError) as caught:
            await switch.write([+station(0x020000000007, 9)])
        assert caught.value.details[0].canonical_code.name == "ALREADY_EXISTS"
        await switch.write([-station(0x020000000007, 9)])
        assert await ports_of_stations(switch) == []

        cell = finsy.P4CounterEntry(program.OUTCOMES, index=33, data=finsy.P4CounterData(packet_count=100))
        await switch.modify([cell])
        read = [each async for each in switch.read(finsy.P4CounterEntry(program.OUTCOMES, index=33))]
        assert [each.packet_count for each in read] == [100]

        group = finsy.P4MulticastGroupEntry(1, replicas=[(1, 1), (2, 2)])
        await switch.insert([group])
        groups = [each async for each in switch.read(finsy.P4MulticastGroupEntry(1))]
        assert len(groups) == 1
        assert len(groups[0].replicas) == 2
        await switch.delete([group])

    with served_engine(engine) as server:
        drive(server.address, steps)


def test_a_pipeline_and_packets(tmp_path: Any) -> None:
    own = source_of(harness.V1MODEL, (), ["AGG_P4RUNTIME=1"])
    blob = tmp_path / "config"
    blob.write_bytes(own.config)
    info = tmp_path / "p4info.txtpb"
    info.write_text(str(own.p4info))

    async def steps(switch: finsy.Switch) -> None:
        answer = finsy.P4TableEntry(
            program.LOCAL,
            match=finsy.Match({"meta.traffic": "1/&7", "hdr.arp.target_ip": "10.0.0.254"}),
            action=finsy.Action("SwitchIngress.frames.answer_arp"),
            priority=4,
        )
        reply = finsy.P4TableEntry(
            program.ARPS,
            match=finsy.Match({"hdr.arp.target_ip": "10.0.0.254"}),
            action=finsy.Action("SwitchEgress.rewrite.arp_reply", mac=0x0200000000FE),
        )
        await switch.write([+answer, +reply])
        packets = switch.read_packets()
        waiting = asyncio.ensure_future(anext(packets))
        await asyncio.sleep(0)
        await switch.write([finsy.P4PacketOut(ARP_REQUEST, port=0, padding=0)])
        came = await waiting
        assert came.payload[6:14].hex() == "0200000000fe0806"
        assert came["port"] is not None

    with harness.served(None) as server:
        drive(server.address, steps, p4info=info, p4blob=blob)


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    page = (harness.REPOSITORY / "docs" / "switches.md").read_text()
    found = re.search(r"```python\n(.*?finsy.*?)```", page, re.DOTALL)
    assert found is not None
    with served_engine("native") as server:
        exec(found[1].replace("10.0.0.2:9559", server.address), {"__name__": "example"})
    assert capsys.readouterr().out.splitlines() == [f"{0x020000000007} -> port 7"]
