"""Small P4 programs for the tests: a frame of an architecture round the few lines that a test is about."""

from __future__ import annotations

from pathlib import Path

from switchagg.p4model.runtime.open import open_switch
from switchagg.p4model.runtime.switch import ModelSwitch

_V1MODEL = """
#include <core.p4>
#include <v1model.p4>
{declarations}
header data_t {{ {fields} }}
{more}
struct headers_t {{ data_t data; {headers} }}
struct user_t {{ {user} }}
parser P(packet_in packet, out headers_t hdr, inout user_t user, inout standard_metadata_t meta) {{
    {parser}
}}
control Verify(inout headers_t hdr, inout user_t user) {{ apply {{ {verify} }} }}
control In(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) {{
    {local}
    apply {{
        meta.egress_spec = 1;
        {ingress}
    }}
}}
control Out(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) {{
    apply {{ {egress} }}
}}
control Update(inout headers_t hdr, inout user_t user) {{ apply {{ {update} }} }}
control Deparse(packet_out packet, in headers_t hdr) {{ apply {{ {deparse} }} }}
V1Switch(P(), Verify(), In(), Out(), Update(), Deparse()) main;
"""

_TNA = """
#include <core.p4>
#include <tna.p4>
{declarations}
header data_t {{ {fields} }}
{more}
struct headers_t {{ data_t data; {headers} }}
struct user_t {{ {user} }}
parser InParser(packet_in packet, out headers_t hdr, out user_t user, out ingress_intrinsic_metadata_t
intrinsic) {{
    {parser_local}
    state start {{
        packet.extract(intrinsic);
        {port_metadata}
        {parser}
        transition accept;
    }}
}}
control In(inout headers_t hdr, inout user_t user, in ingress_intrinsic_metadata_t intrinsic,
        in ingress_intrinsic_metadata_from_parser_t from_parser,
        inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
        inout ingress_intrinsic_metadata_for_tm_t manager) {{
    {local}
    apply {{
        {ingress}
    }}
}}
control InDeparser(packet_out packet, inout headers_t hdr, in user_t user,
        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {{
    {deparser_local}
    apply {{ {deparse} }}
}}
parser OutParser(packet_in packet, out headers_t hdr, out user_t user, out egress_intrinsic_metadata_t
intrinsic) {{
    state start {{
        packet.extract(intrinsic);
        {egress_parser}
        transition accept;
    }}
}}
control Out(inout headers_t hdr, inout user_t user, in egress_intrinsic_metadata_t intrinsic,
        in egress_intrinsic_metadata_from_parser_t from_parser,
        inout egress_intrinsic_metadata_for_deparser_t for_deparser,
        inout egress_intrinsic_metadata_for_output_port_t port) {{
    apply {{ {egress} }}
}}
control OutDeparser(packet_out packet, inout headers_t hdr, in user_t user,
        in egress_intrinsic_metadata_for_deparser_t for_deparser) {{
    {out_deparser_local}
    apply {{ {out_deparse} }}
}}
Pipeline(InParser(), In(), InDeparser(), OutParser(), Out(), OutDeparser()) pipe;
{main}
"""


def v1model(folder: Path, **parts: str) -> ModelSwitch:
    """A switch whose packets begin with `data_t`, and go out at port 1 unless a part says otherwise."""
    filled = {
        "declarations": "",
        "more": "",
        "fields": "bit<8> a; bit<8> b; bit<16> c;",
        "headers": "",
        "user": "",
        "parser": "state start { packet.extract(hdr.data); transition accept; }",
        "verify": "",
        "local": "",
        "ingress": "",
        "egress": "",
        "update": "",
        "deparse": "packet.emit(hdr);",
    }
    return _open(folder, _V1MODEL, filled, parts)


def tna(folder: Path, **parts: str) -> ModelSwitch:
    """A Tofino whose packets begin with `data_t`, and go nowhere unless a part says so."""
    filled = {
        "declarations": "",
        "more": "",
        "fields": "bit<8> a; bit<8> b; bit<16> c;",
        "headers": "",
        "user": "",
        "parser_local": "",
        "port_metadata": "packet.advance(PORT_METADATA_SIZE);",
        "parser": "packet.extract(hdr.data);",
        "local": "",
        "ingress": "",
        "deparser_local": "",
        "deparse": "packet.emit(hdr);",
        "egress_parser": "packet.extract(hdr.data);",
        "egress": "",
        "out_deparser_local": "",
        "out_deparse": "packet.emit(hdr);",
        "main": "Switch(pipe) main;",
    }
    return _open(folder, _TNA, filled, parts)


def _open(folder: Path, frame: str, filled: dict[str, str], parts: dict[str, str]) -> ModelSwitch:
    unknown = set(parts) - set(filled)
    assert not unknown, unknown
    source = folder / "program.p4"
    source.write_text(frame.format(**{**filled, **parts}))
    return open_switch(source, traced=True)


def sent(switch: ModelSwitch, data: str, port: int = 0, now: float = 0.0) -> list[tuple[int, str]]:
    """Returns the packets that come out for one, all in hexadecimal."""
    return [(out, packet.hex()) for out, packet in switch.process(port, bytes.fromhex(data), now)]
