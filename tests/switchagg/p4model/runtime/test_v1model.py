"""v1model as simple_switch has it: where packets go, what is kept, and what the externs do."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from switchagg.p4entities.matches import Exact, Lpm, TableError, Ternary
from switchagg.p4entities.replication import CloneSession
from switchagg.p4model.errors import P4Error
from switchagg.p4model.runtime.hashes import internet_checksum
from switchagg.p4model.runtime.switch import ModelError
from switchagg.p4model.runtime.v1model import V1Switch

from .programs import sent, v1model

LOOK = """
    // Whose packet it is, where egress can see it.
    hdr.data.b = (bit<8>)meta.instance_type;
    hdr.data.c = (bit<16>)meta.packet_length;
"""


def test_unicast_multicast_and_drops(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        ingress="""
            if (hdr.data.a == 0) { meta.egress_spec = 7; }
            if (hdr.data.a == 1) { mark_to_drop(meta); }
            if (hdr.data.a == 2) { mark_to_drop(meta); meta.mcast_grp = 5; }
            if (hdr.data.a == 3) { meta.mcast_grp = 5; mark_to_drop(meta); }
            if (hdr.data.a == 4) { meta.mcast_grp = 6; }
        """,
        egress="""
            hdr.data.b = (bit<8>)meta.egress_port;
            hdr.data.c = meta.egress_rid;
            if (hdr.data.a == 5 || meta.egress_port == 9) { mark_to_drop(meta); }
        """,
    )
    switch.replication.set_group(5, [(100, 3), (101, 4), (102, 9)])
    assert sent(switch, "00000000") == [(7, "00070000")]
    assert sent(switch, "01000000") == []
    assert sent(switch, "02000000") == [(3, "02030064"), (4, "02040065")]
    assert sent(switch, "03000000") == []
    # A group that is not there has no members.
    assert sent(switch, "04000000") == []
    assert sent(switch, "05000000") == []
    assert "drop     egress_spec is 511 at the end of egress" in str(switch.trace)


def test_clones_keep_what_their_list_names(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        user="@field_list(1) bit<8> kept; @field_list(1, 2) bit<8> both; bit<8> lost;",
        ingress="""
            user.kept = 0x11; user.both = 0x22; user.lost = 0x33;
            if (hdr.data.a[0:0] == 1) { clone_preserving_field_list(CloneType.I2E, 3, 1); }
            if (hdr.data.a[1:1] == 1) { clone(CloneType.I2E, 4); }
            hdr.data.c = 0xAAAA;
        """,
        egress="""
            if (meta.instance_type == 0 && hdr.data.a[2:2] == 1) {
                clone_preserving_field_list(CloneType.E2E, 3, 2);
                hdr.data.c = 0xBBBB;
            } else if (meta.instance_type != 0) {
                hdr.data.a = user.kept + user.lost;
                hdr.data.b = user.both;
                hdr.data.c = hdr.data.c | (bit<16>)meta.instance_type;
            }
        """,
    )
    switch.replication.set_session(3, CloneSession(port=9, length=4))
    # A clone of ingress is the packet as it came; one of egress has its changes.
    assert sent(switch, "01000000 77") == [(9, "11220001"), (1, "0100aaaa77")]
    assert sent(switch, "04000000 77") == [(1, "0400bbbb77"), (9, "0022bbbb")]
    assert sent(switch, "02000000 77") == [(1, "0200aaaa77")]
    assert "clone: there is no session 4" in str(switch.trace)
    switch.replication.set_group(6, [(1, 10), (2, 11)])
    switch.replication.set_session(4, CloneSession(group=6))
    assert sent(switch, "02000000 77") == [(10, "0000000177"), (11, "0000000177"), (1, "0200aaaa77")]


def test_resubmit_and_recirculate(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        user="@field_list(3) bit<8> count;",
        ingress="""
            if (hdr.data.a == 1 && user.count < 2) {
                user.count = user.count + 1;
                hdr.data.b = 0xFF;
                resubmit_preserving_field_list(3);
            } else if (hdr.data.a == 1) {
                hdr.data.b = user.count;
                hdr.data.c = (bit<16>)meta.instance_type;
            }
            if (hdr.data.a == 3) { resubmit_preserving_field_list(0); }
        """,
        egress="""
            if (hdr.data.a == 2) {
                hdr.data.b = hdr.data.b + 1;
                hdr.data.c = (bit<16>)meta.packet_length;
                if (hdr.data.b < 3) { recirculate_preserving_field_list(3); }
            }
        """,
    )
    # Resubmitting undoes what ingress wrote to the packet.
    assert sent(switch, "01000000") == [(1, "01020006")]
    assert sent(switch, "02000000 99") == [(1, "0203000599")]
    with pytest.raises(ModelError, match="4096 passes"):
        switch.process(0, bytes.fromhex("03000000"))


def test_lengths_and_truncation(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        headers="data_t second;",
        ingress="if (hdr.data.a == 1) { hdr.second.setValid(); } if (hdr.data.a == 2) { truncate(6); }",
        egress=LOOK,
    )
    assert sent(switch, "00000000 9999") == [(1, "000000069999")]
    # packet_length counts the header that setValid added.
    assert sent(switch, "01000000 9999") == [(1, "0100000a000000009999")]
    assert sent(switch, "02000000 99999999") == [(1, "020000089999")]


def test_checksums_and_hashes(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        fields="bit<16> a; bit<16> b; bit<16> sum; bit<32> crc;",
        verify="""
            verify_checksum(hdr.data.b != 0, {hdr.data.a, hdr.data.b}, hdr.data.sum, HashAlgorithm.csum16);
        """,
        ingress="""
            bit<32> found;
            hash(found, HashAlgorithm.crc32, 32w0, {hdr.data.a, 4w5, hdr.data.b[3:0]}, 64w0x100000000);
            hdr.data.crc = found;
            if (meta.checksum_error == 1) { hdr.data.a = 0; }
            bit<10> place;
            hash(place, HashAlgorithm.crc16, 10w100, {hdr.data.a}, 10w50);
            log_msg("place {} of {}", {place, 8w50});
        """,
        update="""
            update_checksum_with_payload(true, {hdr.data.a, hdr.data.b}, hdr.data.sum, HashAlgorithm.csum16);
        """,
    )
    assert isinstance(switch, V1Switch)
    good = internet_checksum(bytes.fromhex("12345678"))
    new = internet_checksum(bytes.fromhex("12345678 0102"))
    crc = zlib.crc32(bytes.fromhex("1234 58"))
    assert sent(switch, f"12345678 {good:04x} 00000000 0102") == [(1, f"12345678{new:04x}{crc:08x}0102")]
    wrong = sent(switch, "12345678 0000 00000000")
    assert wrong[0][1].startswith("00005678")
    # A condition that is false: not looked at.
    assert sent(switch, "12340000 0000 00000000")[0][1].startswith("12340000")
    places = [int(message.split()[1]) for message in switch.messages]
    assert all(100 <= place < 150 for place in places)


def test_hashes_leave_out_what_is_not_valid(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        fields="bit<8> a; bit<8> b; bit<32> crc;",
        more="header more_t { bit<8> x; bit<16> y; }",
        headers="more_t first; more_t second;",
        parser="""
            state start {
                packet.extract(hdr.data);
                transition select(hdr.data.a) { 1: first; 2: second; default: accept; }
            }
            state first { packet.extract(hdr.first); transition accept; }
            state second { packet.extract(hdr.second); transition accept; }
        """,
        ingress="""
            bit<8> seven = 7;
            hash(hdr.data.crc, HashAlgorithm.crc32, 32w0,
                {hdr.data.b, hdr.first.x, seven, hdr.second, hdr.first.y}, 64w0x100000000);
        """,
    )
    for packet, hashed in (
        ("0055 00000000 112233", "5507"),
        ("0155 00000000 112233", "5511072233"),
        ("0255 00000000 112233", "5507112233"),
    ):
        crc = zlib.crc32(bytes.fromhex(hashed))
        assert sent(switch, packet)[0][1] == f"{packet[:4]}{crc:08x}112233"


def test_registers_counters_and_meters(tmp_path: Path) -> None:
    from switchagg.p4entities.counters import Rate

    switch = v1model(
        tmp_path,
        local="""
            register<bit<16>>(4) seen;
            counter(4, CounterType.packets_and_bytes) count;
            meter(4, MeterType.packets) rate;
            direct_counter(CounterType.packets) hits;
            direct_meter<bit<8>>(MeterType.bytes) speed;
            action note() { speed.read(hdr.data.b); hits.count(); }
            table t {
                key = { hdr.data.a: exact; }
                actions = { note; NoAction; }
                counters = hits;
                meters = speed;
                default_action = NoAction();
            }
        """,
        ingress="""
            bit<16> old = 0xEEEE;
            seen.read(old, (bit<32>)hdr.data.a);
            seen.write((bit<32>)hdr.data.a, hdr.data.c);
            hdr.data.c = old;
            count.count((bit<32>)hdr.data.a);
            hdr.data.b = 0x99;
            rate.execute_meter((bit<32>)hdr.data.a, hdr.data.b);
            t.apply();
        """,
    )
    assert sent(switch, "0100abcd") == [(1, "01000000")]
    assert sent(switch, "01001111") == [(1, "0100abcd")]
    # Outside the arrays nothing is read or written.
    assert sent(switch, "04001111") == [(1, "0499eeee")]
    assert switch.counter("count").read(1) == (2, 8)
    assert switch.register("In.seen").cell(1) == 0x1111
    switch.meter("rate").cell(2).set_rates(Rate(0, 1), Rate(0, 2), 0.0)
    assert [sent(switch, "02000000")[0][1][2:4] for _ in range(4)] == ["00", "01", "02", "02"]
    entry = switch.table("t").add([1], "note")
    assert sent(switch, "01001111") == [(1, "01001111")]
    assert (entry.packets, entry.bytes) == (1, 4)
    with pytest.raises(TableError, match=r"there is no register nothing; there is In\.seen"):
        switch.register("nothing")


def test_tables(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        local="""
            action put(in bit<8> x, bit<16> y) { hdr.data.b = x; hdr.data.c = y; }
            action miss() { hdr.data.c = 0xDEAD; }
            table lpm {
                key = { hdr.data.c: lpm; }
                actions = { put(hdr.data.a + 1); @defaultonly miss; }
                default_action = miss();
            }
            table fixed {
                key = { hdr.data.a: ternary; hdr.data.isValid(): exact; }
                actions = { put(7); NoAction; }
                const default_action = NoAction();
                const entries = {
                    (0x10 &&& 0xF0, true): put(7, 0x1111);
                    (0x11, true): put(7, 0x2222);
                    (_, false): put(7, 0x3333);
                }
            }
            table keyless { actions = { miss; NoAction; } default_action = NoAction(); }
        """,
        ingress="""
            if (hdr.data.b == 1) {
                switch (lpm.apply().action_run) { put: { hdr.data.a = 0xAA; } miss: { hdr.data.a = 0xBB; } }
            }
            if (hdr.data.b == 2) { if (fixed.apply().hit) { hdr.data.a = 0xCC; } }
            if (hdr.data.b == 3) { if (keyless.apply().miss) { hdr.data.b = 0xDD; } }
        """,
    )
    table = switch.table("lpm")
    assert sent(switch, "00010000") == [(1, "bb01dead")]
    table.add([Lpm(0x1200, 8)], "put", [0x1111])
    table.add([Lpm(0x1230, 12)], "In.put", {"y": 0x2222})
    assert sent(switch, "05011234") == [(1, "aa062222")]
    assert sent(switch, "05011244") == [(1, "aa061111")]
    table.set_default("put", [5])
    assert sent(switch, "05010000") == [(1, "aa060005")]
    # The first entry that matches wins.
    assert sent(switch, "11020000") == [(1, "cc071111")]
    assert sent(switch, "21020000") == [(1, "21020000")]
    assert sent(switch, "00030000") == [(1, "00dd0000")]
    for refused, message in (
        (lambda: switch.table("fixed").add([Ternary(1, 1), Exact(1)], "put", [1]), "constant entries"),
        (lambda: switch.table("keyless").add([], "miss"), "has no key"),
        (lambda: table.add([Lpm(0, 0)], "miss"), "is for the default only"),
        (lambda: table.add([Lpm(0, 0)], "gone"), "has no action gone; it has In.miss, In.put"),
        (lambda: switch.table("other"), "there is no table other; there is In.fixed, In.keyless, In.lpm"),
    ):
        with pytest.raises(TableError, match=message):
            refused()


def test_profiles_and_selectors(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        local="""
            action put(bit<8> x) { hdr.data.b = x; }
            table one {
                key = { hdr.data.a: exact; }
                actions = { put; NoAction; }
                implementation = action_profile(32);
            }
            action_selector(HashAlgorithm.identity, 32, 16) chooser;
            table many {
                key = { hdr.data.a: exact; hdr.data.c: selector; }
                actions = { put; NoAction; }
                implementation = chooser;
            }
        """,
        ingress="one.apply(); many.apply();",
    )
    [profile] = [each for name, each in switch.externs.items() if "chooser" not in name]
    profile.add_member(1, "In.put", [0x11])
    switch.table("one").add_choice([5], member=1)
    assert sent(switch, "05000000") == [(1, "05110000")]
    chooser = switch.profile("chooser")
    for member in range(3):
        chooser.add_member(member, "In.put", [0x20 + member])
    chooser.set_group(1, [0, 1, 2])
    switch.table("many").add_choice([6], group=1)
    assert [sent(switch, f"0600{c:04x}")[0][1][2:4] for c in range(4)] == ["20", "21", "22", "20"]


def test_random_is_seeded_and_in_range(tmp_path: Path) -> None:
    parts = {"ingress": "random(hdr.data.b, 8w10, 8w12); random(hdr.data.c, 16w9, 16w8);"}
    first, second = (v1model(tmp_path, **parts) for _ in range(2))
    drawn = [sent(first, "0000abcd")[0][1] for _ in range(50)]
    assert drawn == [sent(second, "0000abcd")[0][1] for _ in range(50)]
    assert {each[2:4] for each in drawn} == {"0a", "0b", "0c"}
    # An empty range leaves the destination as it was.
    assert {each[4:] for each in drawn} == {"abcd"}


def test_digests_messages_and_asserts(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        declarations="struct news_t { bit<8> what; bit<16> more; }",
        ingress="""
            if (hdr.data.a == 1) { digest<news_t>(1, {hdr.data.b, hdr.data.c}); log_msg("one"); }
            assert(hdr.data.a != 2);
        """,
    )
    assert isinstance(switch, V1Switch)
    sent(switch, "0107abcd")
    assert switch.digests == [("news_t", {"what": 7, "more": 0xABCD})]
    assert switch.messages == ["one"]
    with pytest.raises(ModelError, match=r"program\.p4:\d+:\d+: assert failed"):
        switch.process(0, bytes.fromhex("02000000"))


def test_time_is_what_the_caller_says(tmp_path: Path) -> None:
    switch = v1model(tmp_path, ingress="hdr.data.c = (bit<16>)meta.ingress_global_timestamp;")
    assert sent(switch, "00000000", now=0.001) == [(1, "000003e8")]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"declarations": "extern void mine(in bit<8> x);", "ingress": "mine(1);"},
            "mine in v1model is not supp",
        ),
        (
            {"ingress": "hash(hdr.data.a, HashAlgorithm.random, 8w0, {hdr.data.b}, 8w1);"},
            "HashAlgorithm.random",
        ),
        ({"local": "register<data_t>(4) r;"}, "a register of data_t is not supported"),
        ({"ingress": "clone3(CloneType.I2E, 1, {hdr.data.a});"}, "clone3 with data; use clone3_preserving"),
    ],
)
def test_what_is_not_supported_is_named_with_its_place(
    tmp_path: Path, parts: dict[str, str], message: str
) -> None:
    with pytest.raises(P4Error, match=message) as caught:
        v1model(tmp_path, **parts)
    assert caught.value.location.file.endswith("program.p4")
    assert caught.value.location.line > 1


def test_two_actions_of_one_name_in_a_table(tmp_path: Path) -> None:
    local = '@name(".same") action a() { } @name(".same") action b() { } table t { actions = { a; b; } }'
    with pytest.raises(P4Error, match="table `t` lists two actions with the name `same`") as caught:
        v1model(tmp_path, local=local, ingress="t.apply();")
    assert len(caught.value.notes) == 1


def test_a_long_chain_of_else_if(tmp_path: Path) -> None:
    chain = " else ".join(f"if (hdr.data.c == {n}) {{ hdr.data.a = {n % 256}; }}" for n in range(300))
    switch = v1model(tmp_path, ingress=chain + " else { hdr.data.b = 1; }")
    assert sent(switch, "00000105") == [(1, "05000105")]
    assert sent(switch, "0000012c") == [(1, "0001012c")]
