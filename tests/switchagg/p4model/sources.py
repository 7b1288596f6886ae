"""Small programs for tests: written round the part that a test is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.p4model import P4Error, ir, load

V1MODEL = """\
#include <core.p4>
#include <v1model.p4>
header h_t {{ bit<8> a; bit<16> b; int<8> s; bit<1> f; bit<7> rest; }}
struct headers_t {{ h_t h; h_t[3] stack; }}
struct meta_t {{ bit<8> x; bit<16> y; bool flag; }}
{top}
parser P(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {{
    state start {{ packet.extract(hdr.h); {parser} }}
}}
control Verify(inout headers_t hdr, inout meta_t meta) {{ apply {{ }} }}
control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {{
{ingress}
}}
control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {{ apply {{ }} }}
control Compute(inout headers_t hdr, inout meta_t meta) {{ apply {{ }} }}
control MyDeparser(packet_out packet, in headers_t hdr) {{ apply {{ packet.emit(hdr); }} }}
V1Switch(P(), Verify(), MyIngress(), MyEgress(), Compute(), MyDeparser()) main;
"""

TNA = """\
#include <core.p4>
#include <tna.p4>
header h_t {{ bit<32> a; bit<32> b; bit<16> slot; bit<16> kind; }}
struct headers_t {{ h_t h; }}
struct meta_t {{ bit<32> x; bit<32> y; }}
struct pair_t {{ bit<32> low; bit<32> high; }}
parser IngressParser(packet_in packet, out headers_t hdr, out meta_t meta,
                     out ingress_intrinsic_metadata_t intrinsic) {{
    state start {{
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(hdr.h);
        transition accept;
    }}
}}
control Ingress(inout headers_t hdr, inout meta_t meta, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                inout ingress_intrinsic_metadata_for_tm_t for_tm) {{
{ingress}
}}
control IngressDeparser(packet_out packet, inout headers_t hdr, in meta_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {{
    apply {{ packet.emit(hdr); }}
}}
parser EgressParser(packet_in packet, out headers_t hdr, out meta_t meta,
                    out egress_intrinsic_metadata_t intrinsic) {{
    state start {{ packet.extract(intrinsic); transition accept; }}
}}
control Egress(inout headers_t hdr, inout meta_t meta, in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t for_deparser,
               inout egress_intrinsic_metadata_for_output_port_t for_port) {{ apply {{ }} }}
control EgressDeparser(packet_out packet, inout headers_t hdr, in meta_t meta,
                       in egress_intrinsic_metadata_for_deparser_t for_deparser) {{
    apply {{ packet.emit(hdr); }}
}}
Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
"""


def v1model(
    folder: Path, *, ingress: str = "apply { }", top: str = "", parser: str = "transition accept;"
) -> ir.Program:
    """Loads a v1model program with these parts."""
    return _load(folder, V1MODEL.format(ingress=ingress, top=top, parser=parser))


def tna(folder: Path, *, ingress: str) -> ir.Program:
    """Loads a TNA program with this ingress."""
    return _load(folder, TNA.format(ingress=ingress))


def _load(folder: Path, text: str) -> ir.Program:
    path = folder / "program.p4"
    path.write_text(text, encoding="utf-8")
    return load(path)


def refused(folder: Path, **parts: str) -> P4Error:
    """The error for a v1model program with these parts."""
    with pytest.raises(P4Error) as caught:
        v1model(folder, **parts)
    return caught.value


def excerpt(error: P4Error) -> str:
    """The text that the error's caret points at, up to the end of its word."""
    line, caret = str(error).split("\n")[1:3]
    rest = line[caret.index("^") :]
    end = next((index for index, each in enumerate(rest) if not (each.isalnum() or each in "_.")), len(rest))
    return rest[:end] or rest[:1]


def ingress(program: ir.Program) -> ir.ControlInstance:
    """The program's ingress control."""
    control = program.main.args["ig"]
    assert isinstance(control, ir.ControlInstance)
    return control


def assigned(program: ir.Program) -> ir.Expr:
    """The value of the last assignment in the ingress' apply block."""
    values = [each.value for each in ingress(program).body.body if isinstance(each, ir.Assign)]
    return values[-1]
