"""P4Info: ids, aliases, and messages as p4c writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchagg.p4model import P4Error, load
from switchagg.p4model.p4info import Kind, Symbols, field_ids, generate, hash_name
from switchagg.p4model.protobuf_text import Enum, Long, Message
from tests.switchagg.p4model.sources import TNA, v1model

BODY = """
    action set(bit<8> value, @id(7) bit<16> more) { meta.x = value; }
    action unused() { }
    @name("first") table one {
        key = { hdr.h.a: exact; hdr.h.b: lpm @id(5); hdr.h.isValid(): ternary; }
        actions = { set; @tableonly NoAction; }
        default_action = set(3, 0x102);
        size = 64;
    }
    table two { key = { meta.x: exact; } actions = { set; } }
    table never { actions = { NoAction; } }
    counter(32, CounterType.packets_and_bytes) hits;
    register<bit<16>>(8) cells;
    apply { one.apply(); two.apply(); hits.count(0); cells.write(0, 1); }
"""


def info(folder: Path, body: str = BODY, top: str = "") -> Message:
    return generate(v1model(folder, ingress=body, top=top))


def named(message: Message, kind: str) -> dict[str, Message]:
    return {each.get("preamble").get("name"): each for each in message.get(kind) or []}


def test_ids_are_those_of_p4c(tmp_path: Path) -> None:
    # As p4c prints them for its own sample programs.
    assert Kind.ACTION << 24 | hash_name("NoAction") & 0xFFFFFF == 21257015
    assert Kind.TABLE << 24 | hash_name("MyIngress.ipv4_lpm") & 0xFFFFFF == 37375156
    assert Kind.DIGEST << 24 | hash_name("test_digest_t") & 0xFFFFFF == 387015589
    tables = named(info(tmp_path), "tables")
    assert set(tables) == {"MyIngress.first", "MyIngress.two"}
    assert tables["MyIngress.first"].get("preamble").get("alias") == "first"


def test_hashes_that_meet_and_ids_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchagg.p4model.p4info.hash_name", lambda _name: 0xFFFFFF)
    symbols = Symbols()
    for name in ("c", "a", "b"):
        symbols.add(Kind.TABLE, name)
    symbols.assign()
    assert [symbols.id(Kind.TABLE, each) for each in "abc"] == [0x02FFFFFF, 0x02000000, 0x02000001]


def test_aliases_are_the_shortest_ends() -> None:
    symbols = Symbols()
    for name in ("a.b.c", "x.b.c", "x.y.d"):
        symbols.add(Kind.TABLE, name)
    assert [symbols.alias(each) for each in ("a.b.c", "x.b.c", "x.y.d")] == ["a.b.c", "x.b.c", "d"]


def test_a_table(tmp_path: Path) -> None:
    table = named(info(tmp_path), "tables")["MyIngress.first"]
    fields = [
        (each.get("id"), each.get("name"), each.get("bitwidth"), each.get("match_type"))
        for each in table.get("match_fields")
    ]
    assert fields == [
        (1, "hdr.h.a", 8, "EXACT"),
        (5, "hdr.h.b", 16, "LPM"),
        (2, "hdr.h.$valid$", 1, "TERNARY"),
    ]
    assert table.get("size") == 64
    assert [each.get("scope") for each in table.get("action_refs")] == [None, "TABLE_ONLY"]
    arguments = table.get("initial_default_action").get("arguments")
    assert [(each.get("param_id"), each.get("value")) for each in arguments] == [
        (1, b"\x03"),
        (7, b"\x01\x02"),
    ]


def test_a_table_without_default_gets_no_action(tmp_path: Path) -> None:
    table = named(info(tmp_path), "tables")["MyIngress.two"]
    assert [(each.get("id"), each.get("scope")) for each in table.get("action_refs")][1] == (
        21257015,
        "DEFAULT_ONLY",
    )
    assert table.get("initial_default_action").get("action_id") == 21257015
    assert table.get("const_default_action_id") is None


def test_only_what_is_used_is_there(tmp_path: Path) -> None:
    message = info(tmp_path)
    assert set(named(message, "actions")) == {"NoAction", "MyIngress.set"}
    assert named(message, "counters")["MyIngress.hits"].get("spec").get("unit") == "BOTH"
    assert named(message, "registers")["MyIngress.cells"].get("size") == 8


def test_controller_headers_and_translated_types(tmp_path: Path) -> None:
    top = """
        @p4runtime_translation("example.com/port", string) type bit<9> port_t;
        @controller_header("packet_in") header in_t { port_t port; bit<7> padding; }
        struct kept_t { port_t port; }
    """
    body = "register<kept_t>(4) kept; apply { }"
    message = info(tmp_path, body, top)
    header = message.get("controller_packet_metadata")[0]
    assert header.get("preamble").get("name") == "packet_in"
    assert [(each.get("name"), each.get("bitwidth")) for each in header.get("metadata")] == [
        ("port", None),
        ("padding", 7),
    ]
    types = message.get("type_info")
    assert set(types.get("structs")) == {"kept_t"}
    assert types.get("new_types")["port_t"].get("translated_type").get("uri") == "example.com/port"


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    body = """@name(".t") table a { actions = { NoAction; } } @name(".t") table b { actions = { NoAction; } }
        apply { a.apply(); b.apply(); }"""
    with pytest.raises(P4Error, match="two tables have the name `t`"):
        info(tmp_path, body)


def test_field_ids_fill_the_gaps() -> None:
    assert field_ids([(), (), ()]) == [1, 2, 3]


def test_text_and_json() -> None:
    message = Message(
        id=3,
        name='a"b\n',
        scope=Enum("X"),
        empty=None,
        zero=0,
        inner=Message(),
        size=Long(7),
        data=b"\x00\xff",
    )
    assert message.to_text() == (
        'id: 3\nname: "a\\"b\\n"\nscope: X\ninner {\n}\nsize: 7\ndata: "\\000\\377"\n'
    )
    assert json.loads(message.to_json()) == {
        "id": 3,
        "name": 'a"b\n',
        "scope": "X",
        "inner": {},
        "size": "7",
        "data": "AP8=",
    }


TNA_BODY = """
    DirectCounter<bit<64>>(CounterType_t.PACKETS) seen;
    Counter<bit<64>, bit<10>>(1024, CounterType_t.PACKETS) hits;
    Register<bit<32>, bit<10>>(1024) cells;
    action count() { seen.count(); }
    table one { key = { hdr.h.a: exact; } actions = { count; } default_action = count(); counters = seen; }
    apply { one.apply(); hits.count(1); for_deparser.digest_type = 1; }
"""
KINDS = "transition select(hdr.h.kind) { kinds: accept; default: accept; }"
TNA_DIGEST = "Digest<pair_t>() learned; apply { learned.pack({meta.x, meta.y});"


def test_ids_of_a_tofino_s_objects_have_the_pipeline_s_name_in_them(tmp_path: Path) -> None:
    # As p4c's Tofino backend gives them with --p4runtime-force-std-externs.
    text = TNA.format(ingress=TNA_BODY)
    text = text.replace("state start {\n", "value_set<bit<16>>(4) kinds;\n state start {\n", 1)
    text = text.replace("apply { packet.emit(hdr); }", TNA_DIGEST + " packet.emit(hdr); }", 1)
    text = text.replace("transition accept;", KINDS, 1)
    path = tmp_path / "pipelines.p4"
    path.write_text(text)
    found = generate(load(path))

    def preambles(kind: str) -> list[tuple[str, int, str]]:
        each = [entry.get("preamble") for entry in found.get(kind) or []]
        return [(entry.get("name"), entry.get("id"), entry.get("alias")) for entry in each]

    assert preambles("tables") == [("Ingress.one", 0x0292774E, "one")]
    assert preambles("counters") == [("Ingress.hits", 0x12F54DA0, "hits")]
    assert preambles("direct_counters") == [("Ingress.seen", 0x13F78E4D, "seen")]
    assert preambles("registers") == [("Ingress.cells", 0x16D90B6E, "cells")]
    assert preambles("actions")[0] == ("Ingress.count", 0x01334102, "count")
    assert preambles("value_sets") == [("IngressParser.kinds", 0x0319658A, "pipe.IngressParser.kinds")]
    assert preambles("digests") == [("IngressDeparser.learned", 0x1767900C, "learned")]
    (table,) = found.get("tables")
    assert table.get("direct_resource_ids") == [preambles("direct_counters")[0][1]]
