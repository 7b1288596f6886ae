"""P4's operators against Python's own integers, and their order of evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.seeds import seed_of_this_run

from .programs import sent, v1model

WIDTH = 12
MASK = (1 << WIDTH) - 1


def signed(value: int, width: int = WIDTH) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


BINARY: dict[str, Callable[[int, int], int]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x & y": lambda x, y: x & y,
    "x | y": lambda x, y: x | y,
    "x ^ y": lambda x, y: x ^ y,
    "~x": lambda x, _: ~x,
    "-x": lambda x, _: -x,
    "x << 3": lambda x, _: x << 3,
    "x << 13": lambda x, _: x << 13,
    "x >> 5": lambda x, _: x >> 5,
    "(bit<12>)(bit<4>)x": lambda x, _: x & 15,
    "x << (bit<8>)y[3:0]": lambda x, y: x << (y & 15),
    "x >> (bit<8>)y[3:0]": lambda x, y: x >> (y & 15),
    "x |+| y": lambda x, y: min(x + y, MASK),
    "x |-| y": lambda x, y: max(x - y, 0),
    "x[11:4] ++ y[3:0]": lambda x, y: x >> 4 << 4 | y & 15,
    "(x < y ? x : y)": lambda x, y: x if x < y else y,
    "(x == y || x > 100 && y != 7 ? 12w1 : 12w0)": lambda x, y: int(x == y or (x > 100 and y != 7)),
    "(bit<12>)((int<12>)x >> 3)": lambda x, _: signed(x) >> 3,
    "(bit<12>)((int<12>)x |+| (int<12>)y)": lambda x, y: max(min(signed(x) + signed(y), 2047), -2048),
    "(bit<12>)((int<12>)x |-| (int<12>)y)": lambda x, y: max(min(signed(x) - signed(y), 2047), -2048),
    "((int<12>)x < (int<12>)y ? 12w1 : 12w2)": lambda x, y: 1 if signed(x) < signed(y) else 2,
    "(bit<12>)((int<12>)x * (int<12>)y)": lambda x, y: signed(x) * signed(y),
    "(bit<12>)(int<12>)(int<6>)x[5:0]": lambda x, _: signed(x, 6),
    "(bit<12>)(-(int<12>)x)": lambda x, _: -signed(x),
    "(bit<12>)(~(int<12>)x)": lambda x, _: ~signed(x),
    "(bit<12>)((int<12>)x << 2)": lambda x, _: signed(x) << 2,
    "(bit<12>)(bit<1>)(x == y)": lambda x, y: int(x == y),
}
EDGES = [0, 1, 2, 0x7FF, 0x800, 0x801, 0xFFF, 0xAAA]


def test_operators(tmp_path: Path) -> None:
    results = "".join(f"bit<{WIDTH}> r{place};" for place in range(len(BINARY)))
    padding = -WIDTH * (len(BINARY) + 2) % 8
    fields = f"bit<{WIDTH}> x; bit<{WIDTH}> y; {results}" + (f"bit<{padding}> pad;" if padding else "")
    body = "".join(f"hdr.data.r{place} = {text};" for place, text in enumerate(BINARY))
    switch = v1model(
        tmp_path,
        fields=fields,
        ingress=f"bit<{WIDTH}> x = hdr.data.x; bit<{WIDTH}> y = hdr.data.y; {body}",
    )
    total = (WIDTH * (len(BINARY) + 2) + padding) // 8
    generator = random.Random(seed_of_this_run())
    pairs = [(x, y) for x in EDGES for y in EDGES]
    pairs += [(generator.getrandbits(WIDTH), generator.getrandbits(WIDTH)) for _ in range(200)]
    for x, y in pairs:
        packet = (x << 12 | y) << (total * 8 - 24)
        [(_, out)] = switch.process(0, packet.to_bytes(total, "big"))
        bits = int.from_bytes(out, "big")
        for place, (text, function) in enumerate(BINARY.items()):
            found = bits >> (total * 8 - WIDTH * (place + 3)) & MASK
            assert found == function(x, y) & MASK, (text, x, y)


@pytest.mark.parametrize(
    ("body", "packet", "out"),
    [
        # Slices as targets, and slices of slices.
        ("hdr.data.c[11:4] = hdr.data.a;", "12000fff", "1200012f"),
        ("hdr.data.c[11:4][3:0] = 5;", "00000000", "00000050"),
        # Both sides are read before either is written.
        ("hdr.data = {hdr.data.b, hdr.data.a, hdr.data.c};", "01020304", "02010304"),
        # Wide numbers.
        ("bit<128> w = 128w1 << 100; hdr.data.c = (bit<16>)(w >> 90);", "01020304", "01020400"),
        # Shadowed names, and initializers.
        (
            "bit<8> a = 1; if (true) { bit<8> b = a + 1; hdr.data.a = b; } hdr.data.b = a;",
            "00000304",
            "02010304",
        ),
        # A switch on a value.
        (
            "switch (hdr.data.a) { 1: 2: { hdr.data.b = 7; } default: { hdr.data.b = 9; } }",
            "02000000",
            "02070000",
        ),
        ("switch (hdr.data.a) { 1: 2: { hdr.data.b = 7; } }", "03000000", "03000000"),
        (
            "switch (hdr.data.a) { 1: { hdr.data.b = 7; } default: { hdr.data.b = 9; } }",
            "05000000",
            "05090000",
        ),
        # Loops.
        ("for (bit<8> i in 8w1 .. 8w4) { hdr.data.b = hdr.data.b + i; }", "00000000", "000a0000"),
        (
            "for (bit<8> i = 0; i < 10; i = i + 1) { if (i == 2) continue; if (i == 5) break; "
            "hdr.data.b = hdr.data.b + i; }",
            "00000000",
            "00080000",
        ),
        # Return and exit end the control; what was written stays.
        ("hdr.data.a = 1; if (hdr.data.b == 0) return; hdr.data.a = 2;", "00000000", "01000000"),
        ("hdr.data.a = 1; if (hdr.data.b == 0) exit; hdr.data.a = 2;", "00000000", "01000000"),
    ],
)
def test_statements(tmp_path: Path, body: str, packet: str, out: str) -> None:
    assert sent(v1model(tmp_path, ingress=body), packet) == [(1, out)]


def test_arguments_are_copied_in_and_out(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        declarations="""
            bit<8> next(inout bit<8> x) { x = x + 1; return x * 2; }
            void both(inout bit<8> x, inout bit<8> y) { x = x + 1; y = y + 10; }
        """,
        local="""
            action reads(in bit<8> x, out bit<8> y) { hdr.data.a = 9; y = x; }
            action leaves(inout bit<8> x) { x = 5; exit; }
        """,
        ingress="""
            if (hdr.data.a == 1) {
                // The left operand is read before the call changes it.
                hdr.data.b = hdr.data.b + next(hdr.data.b);
            } else if (hdr.data.a == 2) {
                // The last out parameter wins, and neither saw the other.
                both(hdr.data.b, hdr.data.b);
            } else if (hdr.data.a == 3) {
                // x was copied in before the action wrote to what it was.
                reads(hdr.data.a, hdr.data.b);
            } else if (hdr.data.a == 4) {
                // What goes out comes back also when the action exits.
                leaves(hdr.data.b);
                hdr.data.b = 1;
            } else if (hdr.data.a == 5) {
                // && does not evaluate its right side.
                if (hdr.data.b == 7 && next(hdr.data.b) == 16) { hdr.data.c = 1; } else { hdr.data.c = 2; }
            }
        """,
    )
    assert sent(switch, "01030000") == [(1, "010b0000")]
    assert sent(switch, "02030000") == [(1, "020d0000")]
    assert sent(switch, "03000000") == [(1, "09030000")]
    assert sent(switch, "04000000") == [(1, "04050000")]
    assert sent(switch, "05070000") == [(1, "05080001")]
    assert sent(switch, "05060000") == [(1, "05060002")]


def test_the_target_of_an_operator_assignment_is_evaluated_once(tmp_path: Path) -> None:
    switch = v1model(
        tmp_path,
        declarations="""
            bit<8> next_of(inout bit<8> x) { bit<8> before = x; x += 1; return before; }
            header item_t { bit<8> v; bit<8> w; }
        """,
        headers="item_t[3] items;",
        parser="""state start {
            packet.extract(hdr.data);
            packet.extract(hdr.items.next); packet.extract(hdr.items.next); packet.extract(hdr.items.next);
            transition accept;
        }""",
        ingress="""
            hdr.items[next_of(hdr.data.a)].v += hdr.data.a;
            hdr.items[next_of(hdr.data.a) & 3].w[7:4] |= next_of(hdr.data.b)[3:0];
        """,
    )
    assert sent(switch, "00050000 100010001000") == [(1, "02060000110010501000")]
