"""Tofino 1: intrinsic metadata, the traffic manager, register actions, and the deparser's externs."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from switchagg.p4entities.counters import Rate
from switchagg.p4entities.matches import Exact, TableError
from switchagg.p4entities.replication import CloneSession
from switchagg.p4model.errors import P4Error
from switchagg.p4model.runtime.hashes import internet_checksum
from switchagg.p4model.runtime.switch import ModelError
from switchagg.p4model.runtime.tna import TofinoSwitch

from .programs import sent, tna

FORWARD = "manager.ucast_egress_port = 9;"


def test_where_packets_go(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        ingress="""
            if (hdr.data.a == 1) { manager.ucast_egress_port = 0; }
            if (hdr.data.a == 2) { manager.ucast_egress_port = 5; for_deparser.drop_ctl = 1; }
            if (hdr.data.a == 3) { manager.ucast_egress_port = 6; manager.bypass_egress = 1; }
            if (hdr.data.a == 4) { manager.mcast_grp_a = 7; manager.mcast_grp_b = 8; }
            if (hdr.data.a == 5) { manager.mcast_grp_a = 7; manager.ucast_egress_port = 5; }
            manager.copy_to_cpu = hdr.data.a == 5 ? 1w1 : 0;
            if (hdr.data.a == 6) { manager.mcast_grp_a = 7; manager.level1_exclusion_id = 3; }
            if (hdr.data.a == 7) { manager.mcast_grp_a = 7; manager.rid = 21; }
            manager.level2_exclusion_id = hdr.data.a == 7 ? 9w4 : 0;
        """,
        egress="""
            hdr.data.b = (bit<8>)intrinsic.egress_port;
            hdr.data.c = intrinsic.egress_rid;
            if (hdr.data.a == 9) { for_deparser.drop_ctl = 1; }
        """,
    )
    assert isinstance(switch, TofinoSwitch)
    engine = switch.replication
    for group, nodes in ((7, [(20, [1, 2], 3), (21, [3, 4], None)]), (8, [(22, [1], None)])):
        engine.add_group(group)
        for rid, ports, xid in nodes:
            engine.associate(group, engine.add_node(rid, ports, xid))
    switch.pruned[4] = {3}
    # A port that was never written sends nothing; 0 that was written is a port.
    assert sent(switch, "00000000") == []
    assert "neither an egress port nor a multicast group" in str(switch.trace)
    assert sent(switch, "01000000") == [(0, "01000000")]
    assert sent(switch, "02000000") == []
    assert sent(switch, "03001234") == [(6, "03001234")]
    first = [(1, "04010014"), (2, "04020014"), (3, "04030015"), (4, "04040015")]
    assert sent(switch, "04000000") == [*first, (1, "04010016")]
    assert [port for port, _ in sent(switch, "05000000")] == [64, 1, 2, 3, 4, 5]
    assert [port for port, _ in sent(switch, "06000000")] == [3, 4]
    assert [port for port, _ in sent(switch, "07000000")] == [1, 2, 4]


def test_group_zero_is_a_group(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        local="""
            action nothing() {}
            action send(bit<16> group) { manager.mcast_grp_b = group; }
            table t { key = { hdr.data.a : exact; } actions = { nothing; send; } default_action = nothing; }
        """,
        ingress="t.apply(); if (hdr.data.a == 2) { manager.mcast_grp_a = 0; }",
    )
    switch.table("t").add({"hdr.data.a": Exact(1)}, "send", {"group": 0})
    for data in ("01000000", "02000000"):
        assert sent(switch, data) == []
        assert "multicast group 0: 0 copies" in str(switch.trace)
    switch.replication.set_group(0, [(1, 3), (2, 4)])
    assert sent(switch, "00000000") == []
    assert "neither an egress port nor a multicast group" in str(switch.trace)
    for data in ("01000000", "02000000"):
        assert sent(switch, data) == [(3, data), (4, data)]


def test_each_pipe_has_registers_of_its_own(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        local="""
            Register<bit<8>, bit<8>>(2, 16) seen;
            RegisterAction<bit<8>, bit<8>, bit<8>>(seen) count = {
                void apply(inout bit<8> value, out bit<8> result) { value = value + 1; result = value; }
            };
            DirectRegister<bit<8>>() hits;
            DirectRegisterAction<bit<8>, bit<8>>(hits) hit = {
                void apply(inout bit<8> value, out bit<8> result) { value = value + 1; result = value; }
            };
            Counter<bit<32>, bit<8>>(1, CounterType_t.PACKETS) packets;
            action note() { hdr.data.c[7:0] = hit.execute(); }
            table t { key = { hdr.data.a : ternary; } actions = { note; } registers = hits;
                      const entries = { _ : note(); } }
        """,
        ingress="""
            packets.count(0);
            hdr.data.c[15:8] = count.execute(1);
            t.apply();
            hdr.data.b = hdr.data.b + 1;
            manager.bypass_egress = 1;
            manager.ucast_egress_port = hdr.data.a == 1 && hdr.data.b == 1 ? 9w196 : 9;
        """,
    )
    assert isinstance(switch, TofinoSwitch)
    assert sent(switch, "00000000", port=5) == [(9, "00011101")]
    assert sent(switch, "00000000", port=6) == [(9, "00011202")]
    for port in (128, 256, 511):
        assert sent(switch, "00000000", port=port) == [(9, "00011101")]
    # Pipe 0, and once more through pipe 1, whose second packet this is.
    assert sent(switch, "01000000", port=7) == [(9, "01021202")]
    assert sent(switch, "00000000", port=8) == [(9, "00011404")]
    assert [list(switch.register("seen", pipe).cells) for pipe in range(4)] == [
        [16, each] for each in (20, 18, 17, 17)
    ]
    assert switch.register("seen").cell(1) == 20
    assert switch.counter("packets").read(0)[0] == 8
    with pytest.raises(TableError, match=r"pipe is 4; accepted: 0..3"):
        switch.register("seen", 4)


def test_two_pipelines_have_the_registers_of_their_pipes(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        local="""
            Register<bit<8>, bit<8>>(1, 16) seen;
            RegisterAction<bit<8>, bit<8>, bit<8>>(seen) count = {
                void apply(inout bit<8> value, out bit<8> result) { value = value + 1; result = value; }
            };
        """,
        ingress=FORWARD + "hdr.data.a = count.execute(0);",
        main="""
            Pipeline(InParser(), In(), InDeparser(), OutParser(), Out(), OutDeparser()) other;
            Switch(pipe, other) main;
        """,
    )
    assert isinstance(switch, TofinoSwitch)
    for port, count in ((0, 1), (128, 2), (256, 3), (384, 4)):
        for number in range(1, count + 1):
            assert sent(switch, "00000000", port=port) == [(9, f"{16 + number:02x}000000")]
    assert switch.register("pipe.In.seen").cell(0) == 17
    assert switch.register("other.In.seen").cell(0) == 18
    # Pipes that the program leaves out run the first pipeline.
    assert [switch.register("pipe.In.seen", pipe).cell(0) for pipe in range(4)] == [17, 16, 19, 20]
    assert [switch.register("other.In.seen", pipe).cell(0) for pipe in range(4)] == [16, 18, 16, 16]


def test_intrinsic_metadata(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        ingress=FORWARD
        + "hdr.data.b = intrinsic.ingress_port[7:0]; hdr.data.c = from_parser.global_tstamp[15:0];",
        egress="hdr.data.a = (bit<8>)intrinsic.pkt_length;",
    )
    assert sent(switch, "00000000 99", port=300, now=1e-6) == [(9, "052c03e899")]


def test_port_metadata(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        declarations="struct port_t { bit<4> kind; bit<12> vlan; }",
        user="port_t port;",
        port_metadata="user.port = port_metadata_unpack<port_t>(packet);",
        ingress=FORWARD + "hdr.data.c = user.port.vlan ++ user.port.kind;",
    )
    assert isinstance(switch, TofinoSwitch)
    assert sent(switch, "00000000", port=3) == [(9, "00000000")]
    switch.port_metadata[3] = b"\x51\x23"
    assert sent(switch, "00000000", port=3) == [(9, "00001235")]
    assert sent(switch, "00000000", port=4) == [(9, "00000000")]


def test_a_packet_that_the_parser_rejects(tmp_path: Path) -> None:
    switch = tna(tmp_path, ingress=FORWARD)
    assert sent(switch, "000000") == []
    assert "the ingress parser rejected it" in str(switch.trace)
    reads = tna(
        tmp_path,
        ingress=FORWARD + "hdr.data.setValid(); hdr.data.c = from_parser.parser_err;",
        egress_parser="",
        out_deparse="",
    )
    assert sent(reads, "000000") == [(9, "00000022000000")]


def test_register_actions(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        declarations="struct pair_t { bit<16> low; bit<16> high; }",
        local="""
            Register<bit<16>, bit<8>>(4, 100) plain;
            RegisterAction<bit<16>, bit<8>, bit<16>>(plain) add = {
                void apply(inout bit<16> value, out bit<16> result) {
                    result = value;
                    value = value + hdr.data.c;
                }
            };
            RegisterAction<bit<16>, bit<8>, bit<16>>(plain) clear = {
                void apply(inout bit<16> value) { value = 0; }
            };
            RegisterAction<bit<16>, bit<8>, bit<4>>(plain) compare = {
                void apply(inout bit<16> value, out bit<4> result) {
                    result = this.predicate(value == hdr.data.c, value > 150);
                }
            };
            Register<pair_t, bit<8>>(4, {7, 8}) pairs;
            RegisterAction<pair_t, bit<8>, bit<16>>(pairs) swap = {
                void apply(inout pair_t value, out bit<16> result) {
                    bit<16> low = value.low;
                    value.low = value.high;
                    value.high = low + 1;
                    result = value.high;
                }
            };
        """,
        ingress=FORWARD
        + """
            if (hdr.data.a == 1) { hdr.data.c = add.execute(hdr.data.b); }
            if (hdr.data.a == 2) { clear.execute(hdr.data.b); }
            if (hdr.data.a == 3) { hdr.data.c = (bit<16>)compare.execute(hdr.data.b); }
            if (hdr.data.a == 4) { hdr.data.c = swap.execute(hdr.data.b); }
            if (hdr.data.a == 5) { hdr.data.c = plain.read(hdr.data.b); plain.write(hdr.data.b, 9); }
        """,
    )
    assert sent(switch, "01010005") == [(9, "01010064")]
    assert switch.register("plain").cells == [100, 105, 100, 100]
    assert sent(switch, "03010069")[0][1] == "03010002"
    assert sent(switch, "03010068")[0][1] == "03010001"
    sent(switch, "0101ff00")
    assert sent(switch, "0301ff69")[0][1] == "03010008"
    assert sent(switch, "03010000")[0][1] == "03010004"
    sent(switch, "02010000")
    assert switch.register("plain").cell(1) == 0
    assert sent(switch, "04020000") == [(9, "04020008")]
    cell = switch.register("pairs").cell(2)
    assert (cell.low, cell.high) == (8, 8)
    assert sent(switch, "04020000") == [(9, "04020009")]
    untouched = switch.register("pairs").cell(1)
    assert (untouched.low, untouched.high) == (7, 8)
    assert sent(switch, "05030000")[0][1] == "05030064"
    assert switch.register("plain").cell(3) == 9
    with pytest.raises(ModelError, match=r"program\.p4:\d+:\d+: register index 4 is outside of 4 cells"):
        switch.process(0, bytes.fromhex("01040000"))


def test_direct_externs(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        local="""
            DirectCounter<bit<32>>(CounterType_t.PACKETS_AND_BYTES) hits;
            DirectRegister<bit<16>>(5) last;
            DirectRegisterAction<bit<16>, bit<16>>(last) renew = {
                void apply(inout bit<16> value, out bit<16> result) { result = value; value = hdr.data.c; }
            };
            action note() { hits.count(); hdr.data.c = renew.execute(); }
            table t {
                key = { hdr.data.a: exact; }
                actions = { note; }
                counters = hits;
                registers = last;
                default_action = note();
            }
        """,
        ingress=FORWARD + "t.apply();",
    )
    entry = switch.table("t").add([1], "note")
    assert [sent(switch, f"0100{c:04x}")[0][1][4:] for c in (7, 8, 9)] == ["0005", "0007", "0008"]
    # The default has a cell of its own.
    assert sent(switch, "02000001")[0][1] == "02000005"
    # With a frame check sequence, as the hardware counts.
    assert (entry.packets, entry.bytes) == (3, 3 * 8)
    assert switch.table("t").miss.packets == 1


def test_resubmit_mirror_and_digest(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        more="header again_t { bit<16> mark; } header copy_t { bit<8> tag; }",
        headers="again_t again; copy_t copy;",
        user="bit<8> tag; bit<16> mark;",
        parser="packet.extract(hdr.data);",
        ingress=FORWARD
        + """
            user.tag = 0x5A;
            user.mark = 0x1234;
            if (intrinsic.resubmit_flag == 1) { hdr.data.b = 0xFE; }
            else if (hdr.data.a == 1) { for_deparser.resubmit_type = 2; }
            if (hdr.data.a == 2) { for_deparser.mirror_type = 1; for_deparser.drop_ctl = 1; }
            if (hdr.data.a == 3) { for_deparser.digest_type = 1; }
            hdr.data.c = 0xAAAA;
        """,
        deparser_local="Resubmit() resubmit; Mirror() mirror; Digest<copy_t>() digest;",
        deparse="""
            // Types that were never written equal none, not even zero.
            if (for_deparser.resubmit_type == 0) { resubmit.emit(); }
            if (for_deparser.mirror_type == 0) { mirror.emit(3); }
            if (for_deparser.resubmit_type == 2) { resubmit.emit<again_t>({user.mark}); }
            if (for_deparser.mirror_type == 1) { mirror.emit<copy_t>(3, {user.tag}); }
            if (for_deparser.digest_type == 1) { digest.pack({user.tag}); }
            packet.emit(hdr.data);
        """,
        egress_parser="",
    )
    assert isinstance(switch, TofinoSwitch)
    assert sent(switch, "01000000") == [(9, "01feaaaa")]
    assert "resubmitted" in str(switch.trace)
    # The mirrored packet is the one that came, behind its header.
    switch.replication.set_session(3, CloneSession(port=12))
    assert sent(switch, "02001111") == [(12, "5a02001111")]
    switch.replication.set_session(3, CloneSession(port=12, length=3))
    assert sent(switch, "02001111") == [(12, "5a0200")]
    assert sent(switch, "03000000") == [(9, "0300aaaa")]
    assert [values["tag"] for _, values in switch.digests] == [0x5A]


def test_recirculation(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        ingress="""
            hdr.data.c = hdr.data.c + 1;
            if (intrinsic.ingress_port == 68) { manager.ucast_egress_port = 9; }
            else { manager.ucast_egress_port = 68; }
            if (hdr.data.a == 1) { manager.ucast_egress_port = 196; }
        """,
        egress="hdr.data.b = hdr.data.b + 1;",
    )
    assert sent(switch, "00000000") == [(9, "00020002")]
    with pytest.raises(ModelError, match="passes"):
        switch.process(0, bytes.fromhex("01000000"))


def test_hashes_and_checksums(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        fields="bit<16> a; bit<16> b; bit<16> sum; bit<32> crc; bit<16> rest;",
        user="bit<16> left; bool wrong;",
        parser_local="Checksum() old; Checksum() check;",
        parser="""
            packet.extract(hdr.data);
            check.add({hdr.data.a, hdr.data.b, hdr.data.sum});
            user.wrong = check.verify();
            old.subtract({hdr.data.a, hdr.data.sum});
            old.subtract_all_and_deposit(user.left);
        """,
        local="""
            Hash<bit<32>>(HashAlgorithm_t.CRC32) crc;
            CRCPolynomial<bit<16>>(0x1021, false, false, false, 0xFFFF, 0) ccitt;
            Hash<bit<16>>(HashAlgorithm_t.CUSTOM, ccitt) own;
        """,
        ingress=FORWARD
        + """
            hdr.data.crc = crc.get({hdr.data.a, hdr.data.b});
            hdr.data.rest = own.get({hdr.data.a});
            if (user.wrong) { hdr.data.rest = 0; }
            hdr.data.a = hdr.data.a + 1;
        """,
        deparser_local="Checksum() new;",
        deparse="hdr.data.sum = new.update({hdr.data.a, user.left}); packet.emit(hdr);",
    )
    good = internet_checksum(bytes.fromhex("31325678"))
    crc = zlib.crc32(bytes.fromhex("31325678"))
    new = internet_checksum(bytes.fromhex("31335678"))
    # CRC-16/CCITT-FALSE of "12" is 0x3DBA.
    assert sent(switch, f"31325678 {good:04x} 00000000 0000") == [(9, f"31335678{new:04x}{crc:08x}3dba")]
    assert sent(switch, "31325678 0000 00000000 9999")[0][1].endswith("0000")


def test_a_parser_counter_walks_options(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        declarations="@pa_auto_init_metadata",
        more="header item_t { bit<8> v; }",
        headers="item_t[4] items;",
        parser_local="ParserCounter() left;",
        parser="packet.extract(hdr.data); left.set(hdr.data.a); transition select(left.is_zero()) {"
        " true: accept; false: items; } } state items { packet.extract(hdr.items.next); left.decrement(8w1);"
        " transition select(left.is_zero()) { true: accept; false: items; } } state unused {",
        ingress=FORWARD + "hdr.data.b = hdr.items[2].isValid() ? hdr.items[2].v : 0;",
        egress_parser="",
    )
    assert sent(switch, "02000000 1122 33") == [(9, "02000000112233")]
    assert sent(switch, "04000000 11223344 55") == [(9, "040000001122334455".replace("0400", "0433", 1))]
    assert sent(switch, "00000000 1122") == [(9, "000000001122")]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"local": "MathUnit<bit<16>>(MathOp_t.SQR, 1) square;"}, "MathUnit in tna is not supported"),
        ({"local": "Lpf<bit<16>, bit<8>>(16) filter;"}, "Lpf in tna is not supported"),
        (
            {"local": '@symmetric("hdr.data.a", "hdr.data.b") Hash<bit<8>>(HashAlgorithm_t.CRC8) h;'},
            "@symmetric",
        ),
        ({"ingress": "if (is_validated(manager.qid)) { }"}, "is_validated in tna is not supported"),
    ],
)
def test_what_is_not_supported_is_named_with_its_place(
    tmp_path: Path, parts: dict[str, str], message: str
) -> None:
    with pytest.raises(P4Error, match=message) as caught:
        tna(tmp_path, **parts)
    assert caught.value.unsupported
    assert caught.value.location.file.endswith("program.p4")


def test_a_meters_rates_can_be_set(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        local="Meter<bit<8>>(4, MeterType_t.PACKETS) rate;",
        ingress=f"hdr.data.b = rate.execute(hdr.data.a); {FORWARD}",
    )
    assert sent(switch, "02000000") == [(9, "02000000")]
    switch.meter("rate").cell(2).set_rates(Rate(0, 1), Rate(0, 2), 0.0)
    # Green, yellow and red of a Tofino are 0, 1 and 3.
    assert [sent(switch, "02000000")[0][1][2:4] for _ in range(3)] == ["00", "01", "03"]
    # Each pipe has buckets of its own, with the rates of all.
    assert [sent(switch, "02000000", port=128)[0][1][2:4] for _ in range(3)] == ["00", "01", "03"]
    assert sent(switch, "02000000")[0][1][2:4] == "03"
    assert sent(switch, "01000000") == [(9, "01000000")]
