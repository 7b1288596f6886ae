"""The program that a switch should run, and the one that it is assumed to run."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')
from switchagg.errors import SwitchError
from switchagg.p4runtime.client.pipeline import (
    Pipeline,
    describe,
    expected,
    must_push,
)
from switchagg.p4runtime.client.spec import from_table
from switchagg.p4runtime.program_source import source_of
from switchagg.p4runtime.protos import p4info_pb2, p4runtime_pb2
from switchagg.p4runtime.server.native.tables import own_p4info
from tests.switchagg.control.drivers import model_switch
from tests.switchagg.control.drivers.model_switch import TNA, V1MODEL


@pytest.fixture(scope="module")
def infos() -> dict[str, Any]:
    """The P4Infos of our programs."""
    return {
        "v1model": source_of(V1MODEL, (), ["AGG_WORDS=16"]).p4info,
        "tna": source_of(TNA, (), ["AGG_WORDS=16", "AGG_P4RUNTIME=1", "AGG_SLOTS=256"]).p4info,
    }


def _running(p4info: Any, cookie: int = 0) -> Any:
    config = p4runtime_pb2.ForwardingPipelineConfig()
    config.p4info.CopyFrom(p4info)
    if cookie:
        config.cookie.cookie = cookie
    return config


def test_when_a_program_is_pushed(infos: dict[str, Any]) -> None:
    wanted = Pipeline(infos["v1model"], b"config")
    other = Pipeline(infos["v1model"], b"another config")
    assert wanted.cookie != other.cookie
    assert must_push(None, wanted)
    assert not must_push(_running(infos["v1model"]), wanted)
    assert must_push(_running(infos["tna"]), wanted)
    assert not must_push(_running(infos["v1model"], wanted.cookie), wanted)
    assert must_push(_running(infos["v1model"], other.cookie), wanted)
    assert not must_push(_running(infos["tna"]), None)
    with pytest.raises(SwitchError, match="it runs no program; give program="):
        must_push(None, None)


def test_the_order_of_a_p4info_does_not_matter(infos: dict[str, Any]) -> None:
    turned = p4info_pb2.P4Info()
    turned.CopyFrom(infos["v1model"])
    tables = list(turned.tables)
    del turned.tables[:]
    turned.tables.extend(reversed(tables))
    turned.pkg_info.name = "renamed"
    assert not must_push(_running(turned), Pipeline(infos["v1model"], b""))
    turned.tables[0].size += 1
    assert must_push(_running(turned), Pipeline(infos["v1model"], b""))


def test_what_programs_are(infos: dict[str, Any]) -> None:
    spec = model_switch.spec("127.0.0.1:9559")
    model = describe(spec, infos["v1model"])
    assert (model.target, model.exact_words, model.ports.slots) == ("p4", 16, 16384)
    assert (model.ports.controller_port, model.ports.packet_out_port) == (510, 0)
    tofino = describe(model_switch.spec("127.0.0.1:9559", target="tofino"), infos["tna"])
    assert (tofino.target, tofino.exact_words, tofino.ports.slots) == ("tofino", 16, 256)
    assert (tofino.ports.controller_port, tofino.ports.init_port) == (192, 68)
    fewer = describe(model_switch.spec("127.0.0.1:9559", slots=128), infos["tna"])
    assert fewer.capacity.slots == 128
    with pytest.raises(SwitchError, match="its program has slots 256, where the switch's spec says 512"):
        describe(model_switch.spec("127.0.0.1:9559", slots=512), infos["tna"])
    with pytest.raises(SwitchError, match="it runs a TNA program, where the switch's spec says target bmv2"):
        describe(model_switch.spec("127.0.0.1:9559", target="bmv2"), infos["tna"])


def test_what_the_native_engine_says_of_itself() -> None:
    p4info = own_p4info()
    said = (
        '@switchagg_native("words=16..2200", "slots=512", "address=10.0.0.7:4000", "link=abc", "memory=4096")'
    )
    p4info.pkg_info.annotations.append(said)
    program = describe(from_table("a", {"url": "p4runtime://127.0.0.1:9559"}), p4info)
    assert program.native
    capacity = program.capacity
    assert (capacity.slots, capacity.words, capacity.exact_words, capacity.memory) == (512, 2200, None, 4096)
    assert program.own is not None
    assert (program.own.ip, program.own.udp_port, program.link) == ("10.0.0.7", 4000, "abc")
    with pytest.raises(SwitchError, match="it is a native switch, where its spec says target bmv2"):
        describe(model_switch.spec("127.0.0.1:9559", target="bmv2"), p4info)
    p4info.pkg_info.annotations[0] = '@switchagg_native("slots=many")'
    with pytest.raises(SwitchError, match="which cannot be read"):
        describe(from_table("a", {"url": "p4runtime://127.0.0.1:9559"}), p4info)


def test_what_is_expected_of_a_switch_that_cannot_be_asked(infos: dict[str, Any]) -> None:
    assert expected(model_switch.spec("a:1"), None).capacity.exact_words == 64
    assert expected(model_switch.spec("a:1", words=16, slots=64), None).capacity.slots == 64
    assert expected(model_switch.spec("a:1"), Pipeline(infos["v1model"], b"")).capacity.exact_words == 16
    assert (
        expected(from_table("a", {"url": "p4runtime://a:1?target=native"}), None).capacity.exact_words is None
    )
