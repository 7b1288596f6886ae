"""Headers, stacks, unions and varbits: validity, extraction, emission, and what goes wrong in a parser."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from switchagg.p4model.errors import P4Error
from tests.seeds import seed_of_this_run

from .programs import sent, tna, v1model

ITEMS = {
    "more": "header item_t { bit<8> v; bit<7> rest; bit<1> more; }",
    "headers": "item_t[3] items;",
}


def test_headers_of_any_layout_survive(tmp_path: Path) -> None:
    generator = random.Random(seed_of_this_run())
    for round_ in range(8):
        widths = [
            generator.choice([1, 3, 4, 7, 8, 9, 16, 24, 31, 32, 48, 64, 65, 128, 200]) for _ in range(9)
        ]
        widths.append(-sum(widths) % 8 + 8)
        kinds = [generator.choice(["bit", "bit", "int"]) for _ in widths]
        if round_ % 2:
            # A header that does not begin at a whole byte.
            parser = "packet.advance(3); packet.extract(hdr.data); packet.advance(5);"
        else:
            parser = "packet.extract(hdr.data);"
        fields = "".join(f"{k}<{w}> f{n};" for n, (k, w) in enumerate(zip(kinds, widths, strict=True)))
        # Every field is read and written once, so that each is cut out and put back.
        touch = "".join(
            f"hdr.data.f{n} = ({k}<{w}>)(bit<{w}>)hdr.data.f{n};"
            for n, (k, w) in enumerate(zip(kinds, widths, strict=True))
        )
        switch = v1model(
            tmp_path,
            fields=fields,
            parser=f"state start {{ {parser} transition accept; }}",
            ingress=touch,
        )
        size = sum(widths) // 8
        for _ in range(20):
            kept = generator.randbytes(size)
            packet = kept
            if round_ % 2:
                number = generator.getrandbits(3) << (8 * size + 5) | int.from_bytes(kept, "big") << 5
                packet = (number | generator.getrandbits(5)).to_bytes(size + 1, "big")
            rest = generator.randbytes(3)
            assert switch.process(0, packet + rest) == [(1, kept + rest)], (round_, fields)


def test_a_header_is_a_whole_number_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match=r"program\.p4:\d+:\d+: error: header data_t has 13 bits; .* of 8\n"):
        v1model(tmp_path, fields="@flexible bit<13> a;")
    with pytest.raises(
        P4Error, match=r"header odd_t has 15 bits; accepted: a multiple of 8, or is @flexible"
    ):
        tna(tmp_path, more="header odd_t { bit<15> a; }", headers="odd_t odd;")


def test_a_flexible_header_is_padded(tmp_path: Path) -> None:
    switch = tna(
        tmp_path,
        more="@flexible header bridge_t { bit<3> kind; bool seen; bit<7> count; }"
        "header list_t { @flexible bit<4> size; varbit<16> data; }",
        headers="list_t list;",
        user="bridge_t bridge;",
        parser="""
            packet.extract(hdr.data);
            transition select(intrinsic.ingress_port) { 68: again; default: accept; }
        }
        state again {
            packet.extract(user.bridge);
            packet.extract(hdr.list, 8);
        """,
        ingress="""
            if (user.bridge.isValid()) {
                hdr.data.c = (bit<16>)(user.bridge.kind ++ (bit<1>)user.bridge.seen ++ user.bridge.count);
                manager.ucast_egress_port = 9;
            } else {
                user.bridge = {5, true, 100};
                manager.ucast_egress_port = 68;
            }
            manager.bypass_egress = 1;
        """,
        deparse="packet.emit(hdr.data); packet.emit(user.bridge); packet.emit(hdr.list);",
    )
    # Once round: the bridge is 11 bits and 5 of padding, the list after it 4 bits, 8 and 4 of padding.
    bridge = f"{5 << 13 | 1 << 12 | 100 << 5:04x}"
    assert sent(switch, "aabb0000 3550 dd") == [(9, f"aabb{5 << 8 | 1 << 7 | 100:04x}{bridge}3550dd")]
    # Too short by its padding alone.
    assert sent(switch, "aabb0000 35") == []


def test_a_stack_fills_overflows_and_moves(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        **ITEMS,
        parser="""
            state start { packet.extract(hdr.data); transition items; }
            state items {
                packet.extract(hdr.items.next);
                transition select(hdr.items.last.more) { 1: items; 0: accept; }
            }
        """,
        ingress="""
            hdr.data.b = (bit<8>)(bit<3>)(hdr.items[0].isValid() ? 3w1 : 0)
                + (hdr.items[1].isValid() ? 8w2 : 0) + (hdr.items[2].isValid() ? 8w4 : 0);
            if (meta.parser_error == error.StackOutOfBounds) { hdr.data.c = 0xFFFF; }
            if (meta.parser_error == error.PacketTooShort) { hdr.data.c = 0xEEEE; }
            if (hdr.data.a == 1) { hdr.items.push_front(1); }
            if (hdr.data.a == 2) { hdr.items.pop_front(1); }
            if (hdr.data.a == 3) { hdr.items.push_front(1); hdr.items[0] = {0xEE, 0, 0}; }
            if (hdr.data.a == 4) { bit<8> i = 1; hdr.items[i].v = 0xDD; }
        """,
    )
    assert sent(switch, "00000000 1101 2201 3300 44") == [(1, "0007000011012201330044")]
    assert sent(switch, "01000000 1101 2200 44") == [(1, "010300001101220044")]
    assert sent(switch, "02000000 1101 2200 44") == [(1, "02030000220044")]
    # Three are all that there is room for.
    assert sent(switch, "03000000 1101 2201 3300 44") == [(1, "03070000ee001101220144")]
    assert sent(switch, "04000000 1101 2200 44") == [(1, "040300001101dd0044")]
    # The fourth element does not fit: it stays in the payload, behind the three.
    assert sent(switch, "00000000 1101 2201 3301 4401 5500") == [(1, "0007ffff11012201330144015500")]
    assert sent(switch, "00000000 1101 22") == [(1, "0001eeee110122")]


def test_one_header_of_a_union_is_valid(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        more="header x_t { bit<8> v; } header y_t { bit<16> v; } header_union u_t { x_t x; y_t y; }",
        headers="u_t u;",
        parser="""
            state start {
                packet.extract(hdr.data);
                transition select(hdr.data.a) { 1: x; 2: y; default: accept; }
            }
            state x { packet.extract(hdr.u.x); transition accept; }
            state y { packet.extract(hdr.u.y); transition accept; }
        """,
        ingress="""
            if (hdr.data.b == 1) { hdr.u.y.setValid(); hdr.u.y.v = 0xABCD; }
            if (hdr.data.b == 2) { hdr.u.x = {0x77}; }
            if (hdr.data.b == 3) { hdr.u.x.setInvalid(); }
            hdr.data.c = hdr.u.isValid() ? 16w1 : 0;
        """,
    )
    assert sent(switch, "01000000 55 99") == [(1, "010000015599")]
    assert sent(switch, "02000000 5566") == [(1, "020000015566")]
    assert sent(switch, "01010000 55 99") == [(1, "01010001abcd99")]
    assert sent(switch, "02020000 5566 99") == [(1, "020200017799")]
    assert sent(switch, "01030000 55 99") == [(1, "0103000099")]
    assert sent(switch, "00000000 99") == [(1, "0000000099")]


@pytest.mark.parametrize(
    ("packet", "out", "code"),
    [
        ("02000000 aabb cc", "02000000aabbcc", "NoError"),
        ("00000000 cc", "00000000cc", "NoError"),
        ("04000000 aabbccdd", "04000000aabbccdd", "NoError"),
        ("05000000 aabbccddee ff", "05000000aabbccddeeff", "HeaderTooShort"),
        ("04000000 aabb", "04000000aabb", "PacketTooShort"),
        ("f0000000 aabb", "f0000000aabb", "NoMatch"),
        ("f1000000 aabb", "f1000000aabb", "Mine"),
        ("f2000000 aabb", "f2000000aabb", "NoError"),
        ("f3000000 aabb", "f3000000aabb", "ParserInvalidArgument"),
    ],
)
def test_varbits_and_errors(tmp_path: Path, packet: str, out: str, code: str) -> None:
    switch = v1model(
        tmp_path,
        declarations="error { Mine }",
        more="header v_t { varbit<32> v; }",
        headers="v_t v;",
        parser="""
            state start {
                packet.extract(hdr.data);
                transition select(hdr.data.a) {
                    0..9: options;
                    0xF0: nowhere;
                    0xF1: fails;
                    0xF2: reject;
                    0xF3: ragged;
                }
            }
            state options { packet.extract(hdr.v, (bit<32>)hdr.data.a * 8); transition accept; }
            state nowhere { transition select(hdr.data.b) { 1: accept; } }
            state fails { verify(hdr.data.a == 0, error.Mine); transition accept; }
            state ragged { packet.extract(hdr.v, 7); transition accept; }
        """,
        ingress='log_msg("{}", {meta.parser_error});',
    )
    assert sent(switch, packet) == [(1, out)]
    assert switch.messages == [str(switch.program.errors.index(code))]  # type: ignore[attr-defined]


def test_lookahead_advance_and_value_sets(tmp_path: Path) -> None:
    from switchagg.p4entities.matches import Ternary

    switch = v1model(
        tmp_path,
        headers="data_t second;",
        parser="""
            value_set<bit<8>>(4) known;
            state start {
                packet.extract(hdr.data);
                transition select(packet.lookahead<bit<8>>(), hdr.data.a &&& 0) { (known, _): skip; _:
                accept; }
            }
            state skip { packet.advance(8); packet.extract(hdr.second); transition accept; }
        """.replace(", hdr.data.a &&& 0", "").replace("(known, _)", "known"),
    )
    assert sent(switch, "00000000 a7 01020304 05") == [(1, "00000000a70102030405")]
    switch.value_set("known").add([Ternary(0xA0, 0xF0)])
    assert sent(switch, "00000000 a7 01020304 05") == [(1, "000000000102030405")]
    assert sent(switch, "00000000 b7 01020304 05") == [(1, "00000000b70102030405")]
    switch.value_set("known").members.clear()
    assert sent(switch, "00000000 a7") == [(1, "00000000a7")]
    # A look ahead of what is not there is an error, after which the rest is payload.
    assert sent(switch, "00000000") == [(1, "00000000")]
    assert "parser: PacketTooShort" in str(switch.trace)


def test_a_look_ahead_at_an_empty_tuple(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        declarations="struct ahead_t { bit<8> x; tuple<> nothing; }",
        user="ahead_t ahead;",
        parser="""
            state start {
                packet.extract(hdr.data);
                user.ahead = packet.lookahead<ahead_t>();
                transition accept;
            }
        """,
        ingress="hdr.data.b = user.ahead.x;",
    )
    assert sent(switch, "00000000 a7") == [(1, "00a70000a7")]


def test_validity(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        headers="data_t second; data_t third;",
        ingress="""
            // Reading an invalid header gives what is in it; setValid begins with zeros.
            hdr.second.a = 9;
            hdr.data.b = hdr.second.a;
            if (hdr.data.a == 1) { hdr.second.setValid(); }
            if (hdr.data.a == 2) { hdr.second = hdr.data; }
            if (hdr.data.a == 3) { hdr.second = hdr.data; hdr.second = hdr.third; }
            if (hdr.data.a == 4) { hdr.data.setInvalid(); }
            if (hdr.second == hdr.third) { hdr.data.c[0:0] = 1; }
        """,
    )
    assert sent(switch, "00000000 99") == [(1, "0009000199")]
    assert sent(switch, "01000000 99") == [(1, "010900000000000099")]
    assert sent(switch, "02000000 99") == [(1, "020900000209000099")]
    assert sent(switch, "03000000 99") == [(1, "0309000199")]
    assert sent(switch, "04000000 99") == [(1, "99")]
