"""Mutated P4 programs through preprocessor, lexer, parser, checker, warnings and P4Info.

The programs are those of p4/, and parts of programs in tests/switchagg/p4model. Each gives a program, or a
`P4Error` with a place.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

from switchagg.p4model import load
from switchagg.p4model.errors import P4Error
from switchagg.p4model.lexer import KEYWORDS, MARKS, SOFT_KEYWORDS
from switchagg.p4model.p4info import generate
from switchagg.p4model.warnings import warnings_of
from tests.fuzz.mutations import bytes_changed, tokens_changed
from tests.switchagg.p4model.sources import TNA, V1MODEL

ROOT: Final = Path(__file__).parents[2]
_TESTS: Final = ROOT / "tests" / "switchagg" / "p4model"
_TOKEN: Final = re.compile(r"[A-Za-z_0-9]+|\s+|[^\sA-Za-z_0-9]")
_NUMBERS: Final = (
    *(
        "0",
        "1",
        "8w255",
        "9s1",
        "1s0",
        "0w0",
        "-1",
        "0xFFFF_FFFF",
        "4294967296",
        "99999999999w1",
        "1_000_000",
    ),
    "1" * 5000,
    "8w" + "9" * 5000,
    "2147483647",
    "0b",
    "8w0x",
    "3000000000",
    "1" + "0" * 30,
    "65536",
)
_WORDS: Final = (
    "hdr",
    "hdr.h",
    "hdr.h.a",
    "hdr.stack",
    "hdr.stack[0]",
    "hdr.stack.next",
    "meta.x",
    "meta.flag",
    "standard",
    "main",
    "packet",
    "packet.extract",
    "isValid()",
    "setValid()",
    "size",
    "const entries",
    "default_action",
    "mark_to_drop",
    '@name("x")',
    "@hidden",
    "@optional",
    "@[x=1]",
    "<<",
    ">>",
    "lookahead<bit<8>>()",
    "bit<8>",
    "bit<0>",
    "int<1>",
    "varbit<32>",
    "h_t",
    "headers_t",
    "tuple<bit<8>, bool>",
    "list<bit<8>>",
    "accept",
    "reject",
    "start",
    "T",
    "NoAction",
    '"text"',
    '"',
    "/*",
    "*/",
    "//",
    "\\\n",
    "1 << 99999999999",
    "1 << 40",
    "[7:0]",
    "[0:7]",
    "h_t[100000000]",
    "(bit<8>)",
)
_DIRECTIVES: Final = (
    "\n#if 1\n",
    "\n#ifdef\n",
    "\n#endif\n",
    "\n#else\n",
    "\n#elif 1 / 0\n",
    "\n#if 1 << 99999999999\n",
    "\n#define\n",
    "\n#define A A A\nA\n",
    "\n#define f(x) f(x) f(x)\nf(f(f(1)))\n",
    "\n#include\n",
    "\n#include <core.p4>\n",
    "\n#if (\n",
    '\n#include "program.p4"\n',
    '\n#include "."\n',
    "\n#undef\n",
    "\n#line 5\n",
    "\n#pragma x\n",
    "\n#warning w\n",
    "\n#define g(...) __VA_ARGS__ ## #\ng(1)\n",
    "\n#define A B B\n#define B C C\n#define C A 1\nA\n",
    "\n#if defined\n",
    "\n#if A(\n#endif\n",
    "\n# 5\n",
    "\n#\n",
    "#define x\\",
    "__LINE__",
    "__FILE__",
    "__COUNTER__",
    "\n#if 'a' == L'b'\n#endif\n",
    "\n#define h(x) #x x##x\nh(h(\n",
    "\n#if 0x\n#endif\n",
    "\n#if 1 ? 2\n#endif\n",
    "\n#elif\n",
    '\n#include "/"\n',
)


_RICH: Final = """\
#include <core.p4>
#include <v1model.p4>
typedef bit<9> port_t;
type bit<32> index_t;
const bit<16> LIMIT = 10 + 3 * 2;
enum color_t { red, green }
enum bit<8> kind_t { one = 1, two = 2 }
error { Mine }
header h_t { kind_t kind; bit<8> a; bit<16> b; int<8> s; varbit<32> v; }
header g_t { bit<32> x; }
header_union u_t { g_t first; g_t second; }
struct pair_t<T> { T low; T high; }
struct headers_t { h_t h; g_t[3] stack; u_t u; }
struct meta_t { @field_list(1) bit<8> x; bit<16> y; bool flag; pair_t<bit<8>> pair; tuple<bit<8>, bool> two; }
bit<8> added<T>(in bit<8> left, in T right) { if (left == 0) { return 1; } return left + (bit<8>)right; }
action copied(inout bit<8> to, in bit<8> what) { to = what; }
parser P(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    value_set<bit<8>>(4) known;
    state start {
        packet.extract(hdr.h, 8);
        verify(hdr.h.a != 0, error.Mine);
        transition select(hdr.h.a, hdr.h.b) {
            (1, _): items; (2 .. 5, 0x10 &&& 0xF0): accept; default: reject; }
    }
    state items {
        packet.extract(hdr.stack.next);
        meta.x = packet.lookahead<bit<8>>();
        transition select(hdr.h.a) { known: items; 1: accept; default: accept; }
    }
}
control Verify(inout headers_t hdr, inout meta_t meta) { apply { } }
control Part(inout meta_t meta)(bit<8> by) { apply { meta.x = meta.x |+| by; } }
control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    register<bit<16>>(1024) kept;
    counter(16, CounterType.packets_and_bytes) counted;
    direct_counter(CounterType.packets) direct;
    meter(4, MeterType.bytes) rate;
    action_profile(8) members;
    Part(5) part;
    action drop() { mark_to_drop(standard); }
    action forward(@name("to") port_t port, bit<8> a) {
        standard.egress_spec = port; hdr.h.a = a; direct.count(); }
    table places {
        key = { hdr.h.a: exact @name("the.a"); hdr.h.b: lpm; meta.y[7:0]: ternary; hdr.h.isValid(): exact; }
        actions = { forward; drop; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = direct;
        size = 64;
    }
    table fixed {
        key = { hdr.h.a: range; meta.x: optional; }
        actions = { forward; drop; }
        entries = { priority = 10: (1 .. 5, 7): forward(3, 1); (_, _): drop(); }
    }
    table chosen {
        key = { hdr.h.a: exact; hdr.h.b: selector; }
        actions = { drop; } implementation = members; }
    apply {
        bit<16> old;
        kept.read(old, (bit<32>)hdr.h.a);
        kept.write(3, old + (bit<16>)added(hdr.h.a, 8w3));
        if (places.apply().hit && !meta.flag) { part.apply(meta); } else if (fixed.apply().miss) { exit; }
        switch (fixed.apply().action_run) { forward: { meta.x = 1; } drop: default: { return; } }
        switch (hdr.h.a) { 1: 2: { meta.x = 2; } default: { } }
        for (bit<8> i = 0; i < 3; i = i + 1) { if (i == 2) { break; } meta.x += i; }
        for (bit<8> each in 1 .. 4) { meta.x = meta.x ^ each; continue; }
        meta.pair = { low = 1, ... };
        meta.two = { hdr.h.a, true };
        hdr.stack[0] = { 5 };
        hdr.u.first.setValid();
        copied(hdr.h.a, meta.flag ? 8w3 : meta.pair.high);
        hdr.h.b[15:8] = hdr.h.a ++ hdr.h.a == 16w5 ? 8w1 : (bit<8>)(LIMIT >> 3);
        hash(old, HashAlgorithm.crc16, 16w0, { hdr.h.a, hdr.h.b }, 32w65536);
        log_msg("{}", { meta.x });
        hdr.stack.push_front(1);
        clone_preserving_field_list(CloneType.I2E, 5, 1);
    }
}
control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) { apply { } }
control Compute(inout headers_t hdr, inout meta_t meta) {
    apply { update_checksum(hdr.h.isValid(), { hdr.h.a, hdr.h.b }, hdr.h.b, HashAlgorithm.csum16); }
}
control MyDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), Verify(), MyIngress(), MyEgress(), Compute(), MyDeparser()) main;
"""


def _fragments() -> list[str]:
    """Returns the pieces of P4 in the tests of the P4 model."""
    found = []
    for path in sorted(_TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.search("[;}]$", node.value.strip())
            ):
                found.append(node.value)
    assert len(found) > 100, len(found)
    return found


@contextlib.contextmanager
def target(folder: Path) -> Iterator[Callable[[Random], None]]:
    """Yields a function that makes and loads one program."""
    fragments = _fragments()
    files = sorted((ROOT / "p4").rglob("*.p4"))
    own = [_TOKEN.findall(path.read_text(encoding="utf-8")) for path in files]
    vocabulary = [*KEYWORDS, *SOFT_KEYWORDS, *MARKS, *_NUMBERS, *_WORDS, *_DIRECTIVES]
    path = folder / "program.p4"

    def text(random: Random) -> str:
        fragment = random.choice(fragments)
        match random.randrange(6):
            case 0:
                return TNA.format(ingress=fragment if "apply" in fragment else f"apply {{ {fragment} }}")
            case 1:
                return V1MODEL.format(top="", ingress=fragment, parser="transition accept;")
            case 2:
                return V1MODEL.format(
                    top=fragment, ingress=random.choice(fragments), parser="transition accept;"
                )
            case _:
                return _RICH

    def small(random: Random) -> Path:
        tokens = _TOKEN.findall(text(random))
        others = random.choice(own) if random.randrange(2) else _TOKEN.findall(text(random))
        changed = "".join(tokens_changed(tokens, random, vocabulary, others)).encode()
        path.write_bytes(bytes_changed(changed, random) if random.randrange(30) == 0 else changed)
        return path

    def large(random: Random) -> Path:
        """Changes one file of p4/."""
        chosen = random.randrange(len(files))
        for each, tokens in zip(files, own, strict=True):
            copy = folder / each.relative_to(ROOT / "p4")
            copy.parent.mkdir(exist_ok=True)
            changed = (
                tokens_changed(tokens, random, vocabulary, random.choice(own))
                if each is files[chosen]
                else tokens
            )
            copy.write_text("".join(changed), encoding="utf-8")
        return folder / random.choice(("switchagg_v1model.p4", "switchagg_tna.p4"))

    def execute(random: Random) -> None:
        program = large(random) if random.randrange(40) == 0 else small(random)
        try:
            loaded = load(program, [folder])
        except P4Error as error:
            _check(error)
            return
        warnings_of(loaded)
        with contextlib.suppress(P4Error):  # such as two tables with one id
            generate(loaded)

    yield execute


def _check(error: P4Error) -> None:
    assert error.location.file, str(error)
    assert error.reason, str(error)
    assert error.location.line or _of_the_whole(error.reason), f"no place: {error}"


def _of_the_whole(reason: str) -> bool:
    """Returns True for what is wrong with a file, not with a place in it."""
    return "has no instance named `main`" in reason or "is not a text in UTF-8" in reason
