"""A program with one of everything that P4Runtime writes and reads."""

EVERYTHING = """
#include <core.p4>
#include <v1model.p4>
@controller_header("packet_out") header out_h { bit<9> port; bit<7> pad; }
@controller_header("packet_in") header in_h { bit<9> port; bit<7> why; }
header eth_h { bit<48> to; bit<48> from; bit<16> type; }
struct headers_t { in_h to_client; out_h of_client; eth_h eth; }
struct seen_t { bit<48> from; bit<9> port; }
struct user_t { bit<2> colour; }
parser P(packet_in packet, out headers_t hdr, inout user_t user, inout standard_metadata_t meta) {
    value_set<bit<16>>(4) special;
    state start {
        transition select(meta.ingress_port) { 510: client; default: eth; }
    }
    state client { packet.extract(hdr.of_client); transition eth; }
    state eth {
        packet.extract(hdr.eth);
        transition select(hdr.eth.type) { special: mark_it; default: accept; }
    }
    state mark_it { user.colour = 2; transition accept; }
}
control C(inout headers_t hdr, inout user_t user) { apply {} }
control In(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) {
    counter(8, CounterType.packets_and_bytes) seen;
    meter(4, MeterType.packets) rates;
    direct_counter(CounterType.packets) hits;
    direct_meter<bit<2>>(MeterType.packets) limits;
    action_selector(HashAlgorithm.crc16, 16, 16) choices;
    register<bit<32>>(4) memory;
    action to(bit<9> port) { hits.count(); meta.egress_spec = port; }
    action copies(bit<16> group) { hits.count(); meta.mcast_grp = group; }
    action up(bit<7> why) {
        hits.count();
        meta.egress_spec = 510;
        hdr.to_client.setValid();
        hdr.to_client.port = meta.ingress_port;
        hdr.to_client.why = why;
    }
    action drop() { hits.count(); mark_to_drop(meta); }
    action nothing() {}
    action drop_it() { mark_to_drop(meta); }
    action out_by(bit<9> port) { meta.egress_spec = port; }
    action tell() { digest<seen_t>(1, { hdr.eth.from, meta.ingress_port }); }
    action mirror() { clone_preserving_field_list(CloneType.I2E, 5, 0); }
    action limit() { limits.read(user.colour); }
    action mark(bit<4> n) { seen.count((bit<32>) n); rates.execute_meter<bit<2>>((bit<32>) n, user.colour); }
    table l2 {
        key = { hdr.eth.to: exact; }
        actions = { to; copies; up; @defaultonly drop; }
        default_action = drop();
        counters = hits;
        size = 4;
    }
    table rules {
        key = { hdr.eth.from: ternary; meta.ingress_port: range; hdr.eth.type: optional; }
        actions = { tell; mirror; @tableonly mark; nothing; }
        default_action = nothing();
    }
    table prefixes {
        key = { hdr.eth.from: lpm; }
        actions = { limit; nothing; }
        const default_action = nothing();
        meters = limits;
    }
    table fixed {
        key = { hdr.eth.type: ternary; }
        actions = { nothing; drop_it; }
        const entries = { 0x88B6: drop_it(); 0x0800 &&& 0xFF00: nothing(); }
    }
    table shared {
        key = { hdr.eth.type: exact; hdr.eth.from: selector; }
        actions = { out_by; nothing; }
        implementation = choices;
    }
    apply {
        if (hdr.of_client.isValid()) {
            meta.egress_spec = hdr.of_client.port;
            hdr.of_client.setInvalid();
        } else {
            l2.apply();
            rules.apply();
            prefixes.apply();
            shared.apply();
            fixed.apply();
            if (user.colour == 2) { mark_to_drop(meta); }
        }
    }
}
control Out(inout headers_t hdr, inout user_t user, inout standard_metadata_t meta) { apply {} }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.to_client); packet.emit(hdr.eth); }
}
V1Switch(P(), C(), In(), Out(), C(), D()) main;
"""
