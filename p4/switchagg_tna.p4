/* The switch for Tofino 1 (TNA).

   Twelve stages, and 64 words in eight of them:

     stage  tables                        registers                     what is known afterwards
     0      own_source, local, stations,                                whose packet, for which slot, its bits;
            deliveries, admission                                       seq - P; slot xor seq
     1      rounds, placement             seq                           fresh, same round, or stale
     2      attendance                    missing, missing_again        who was missing: others, nobody, this
                                                                        worker alone; whether it was this worker
     3      fillings, steps               filled                        whether the slot had words; what to do
     4..11  words_0 .. words_31           32 pairs of words             the even words, or in a second pass the odd
     4      outcome                                                     for whom, with which words, how to count
     5..    dispatch, exits, counters                                   the port or group

   How it fits.
   - A stateful ALU compares a register with two values and hands out which comparisons held. So one access of
     `seq` tells fresh (seq - P, which admission has computed) from same (seq), and overwrites in the first case.
   - `missing` is the complement of seen, so that "full" is a comparison with zero and "last" one with the worker's
     bit. Whether this worker's own bit is there is a third answer, and an ALU gives one: `missing_again` repeats
     the register and gives that.
   - A register has four actions at most: store, sum, or, read the odd half. The even half is read by or-ing with
     zeroed words; `steps` zeroes them, all in one stage, when the packet brings words that must not be added.
   - An ALU holds two words and hands out one. A packet that carries stored words comes round once more for
     the odd ones. One whose words are the slot's only ones carries the result already and does not.
   - The tables of words match on a code of `steps` and on `filled`. Both are of stage 3. A table that joined them
     to one code would be a thirteenth stage.

   Registers are a pipe's own: all workers of a job are on ports of one pipe, second passes stay in it, and INITs
   come to it by its recirculation port, to which the controller's packet-out sends them. */

#include <core.p4>
#include <tna.p4>

#define DIRECT_COUNTER(name) DirectCounter<bit<64>>(CounterType_t.PACKETS) name;
#define COUNT(name) name.count();
/* P4Info has the controller's headers only with the annotation, of which p4c's Tofino backend warns. */
#ifdef AGG_P4RUNTIME
#define CONTROLLER_HEADER(name) @controller_header(name)
#else
#define CONTROLLER_HEADER(name)
#endif
#define CONST_SIZE(entries) size = entries;

#include "include/headers.p4"
#include "include/metadata.p4"

#include "include/ethernet.p4"
#include "include/slots_tna.p4"
#include "include/words_tna.p4"
#include "include/slot_rules.p4"
#include "include/rewrite.p4"
#ifdef AGG_LOSS
#include "include/loss_tna.p4"
#endif

/* Of each pipe. */
#define RECIRCULATION 68

parser SwitchIngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                           out ingress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        /* Here and not in the control, where it would order tables that write them into different stages. */
        meta.traffic = 0;
        meta.form = 0;
        meta.task = 0;
        meta.way = 0;
        meta.slots_log = 0;
        meta.worker = 0;
        meta.others = 0;
        meta.previous = 0;
        meta.alone = 0;
        meta.leaf = 0;
        meta.tally = 0;
        meta.worker_tally = 0;
        meta.skew = 0;
        meta.misplaced = 0;
        meta.verdict = 0;
        meta.standing = 0;
        meta.crossed_off = 0;
        meta.duplicate = 0;
        meta.brought = 0;
        meta.filled = 0;
        meta.audience = 0;
        meta.words = 0;
        transition select(intrinsic.ingress_port) {
            AGG_CONTROLLER_PORT: parse_packet_out;
            RECIRCULATION &&& 0x7F: parse_bridge;
            default: make_bridge;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition make_bridge;
    }

    state parse_bridge {
        packet.extract(hdr.bridge);
        transition parse_frame;
    }

    state make_bridge {
        hdr.bridge.setValid();
        hdr.bridge.next_hop = NEXT_HOP_FORWARD;
        hdr.bridge.words = 0;
        hdr.bridge.again = 0;
        hdr.bridge.receiver = 0;
        hdr.bridge.group = 0;
        hdr.bridge.reader = 0;
        hdr.bridge.bare = 0;
        transition parse_frame;
    }

#define PARSE_WORDS 1
#include "include/frame_states.p4"
#undef PARSE_WORDS
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                      in ingress_intrinsic_metadata_from_parser_t from_parser,
                      inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                      inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Frames() frames;
    Slots() slots;
    Words() words;
    Outcome() outcome;
    step_t step;
#ifdef AGG_LOSS
    Loss() loss;
    bit<1> lost;
#endif

    Counter<bit<64>, bit<13>>(AGG_JOBS * 32, CounterType_t.PACKETS) outcomes;
    Counter<bit<64>, bit<13>>(AGG_JOBS * 32, CounterType_t.PACKETS) worker_packets;
    Counter<bit<64>, bit<13>>(AGG_JOBS * 32, CounterType_t.PACKETS) worker_repeats;

    /* Stage 0. */

    Hash<bit<16>>(HashAlgorithm_t.XOR16) skew;

    /* The second pass of a packet: it has its destination with it. */
    action resume() {
        meta.task = TASK_READ_SECOND;
        meta.way = WAY_PORT;
        hdr.bridge.again = 0;
    }

    action resume_to_all() {
        meta.task = TASK_READ_SECOND;
        meta.way = WAY_GROUP;
        hdr.bridge.again = 0;
    }

    action send_as_is() {
        hdr.bridge.port = hdr.packet_out.port;
        meta.way = WAY_PORT;
    }

    /* Stage 5: where to? */

    action send_to_all() {
        hdr.bridge.receiver = 0;
        meta.way = WAY_GROUP;
    }

    action send_to_one() {
        meta.way = WAY_PORT;
    }

    /* Whoever asks again gets the words. */
    action answer() {
        hdr.bridge.reader = 0;
        meta.way = WAY_PORT;
    }

    /* The second pass's parser must find the words, though a SKIP may have come. */
    action come_again() {
        hdr.bridge.again = 1;
        hdr.bridge.words = 1;
        hdr.udp.bytes = UDP_BYTES_FULL;
        hdr.agg.flags = hdr.agg.flags | 1;
        meta.way = WAY_PORT;
    }

    action send_to_all_again() {
        hdr.bridge.receiver = 0;
        come_again();
    }

    action send_to_one_again() {
        hdr.bridge.group = 0;
        come_again();
    }

    action answer_again() {
        hdr.bridge.group = 0;
        hdr.bridge.reader = 0;
        come_again();
    }

    action send_own_to_all() {
        hdr.bridge.words = 1;
        send_to_all();
    }

    action send_own_to_one() {
        hdr.bridge.words = 1;
        send_to_one();
    }

    table dispatch {
        key = {
            meta.audience: exact;
            meta.leaf: exact;
            meta.words: exact;
        }
        actions = {
            send_to_all;
            send_to_one;
            send_own_to_all;
            send_own_to_one;
            send_to_all_again;
            send_to_one_again;
            answer;
            answer_again;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (AUDIENCE_ALL, 0, WORDS_NONE): send_to_all();
            (AUDIENCE_ALL, 0, WORDS_OWN): send_own_to_all();
            (AUDIENCE_ALL, 0, WORDS_STORED): send_to_all_again();
            (AUDIENCE_ALL, 1, WORDS_NONE): send_to_one();
            (AUDIENCE_ALL, 1, WORDS_OWN): send_own_to_one();
            (AUDIENCE_ALL, 1, WORDS_STORED): send_to_one_again();
            (AUDIENCE_SENDER, 0, WORDS_NONE): answer();
            (AUDIENCE_SENDER, 0, WORDS_STORED): answer_again();
            (AUDIENCE_SENDER, 1, WORDS_NONE): answer();
            (AUDIENCE_SENDER, 1, WORDS_STORED): answer_again();
        }
        CONST_SIZE(10)
    }

    /* The words that came in do not go out; the frame stays as long as Ethernet wants it. */
    action remove_words() {
        hdr.words.setInvalid();
        hdr.padding.setValid();
        hdr.padding.zero = 0;
    }

    action remove_zeros() {
        hdr.words.setInvalid();
    }

    /* The end. */

    action to_port() {
        for_tm.ucast_egress_port = hdr.bridge.port;
    }

    action to_second_pass(port_t recirculation) {
        for_tm.ucast_egress_port = recirculation;
    }

    action to_group() {
        for_tm.mcast_grp_a = hdr.bridge.group;
    }

    action drop() {
        for_deparser.drop_ctl = 1;
    }

    table exits {
        key = {
            meta.way: ternary;
            hdr.bridge.again: ternary;
            intrinsic.ingress_port: ternary;
        }
        actions = {
            to_port;
            to_second_pass;
            to_group;
            drop;
        }
        const default_action = drop();
        const entries = {
            (WAY_PORT, 0, _): to_port();
            (WAY_PORT, 1, 0x000 &&& 0x180): to_second_pass(RECIRCULATION);
            (WAY_PORT, 1, 0x080 &&& 0x180): to_second_pass(RECIRCULATION + 0x080);
            (WAY_PORT, 1, 0x100 &&& 0x180): to_second_pass(RECIRCULATION + 0x100);
            (WAY_PORT, 1, 0x180 &&& 0x180): to_second_pass(RECIRCULATION + 0x180);
            (WAY_GROUP, 0, _): to_group();
        }
        CONST_SIZE(6)
    }

    apply {
        meta.skew = skew.get({ hdr.agg.slot, hdr.agg.seq[15:0] });
        hdr.bridge.from = intrinsic.ingress_port;
#ifdef AGG_LOSS
        loss.apply(intrinsic.ingress_port, lost);
        if (lost == 1) {
            meta.way = WAY_NONE;
        } else
#endif
        if (hdr.bridge.again == 1) {
            if (hdr.bridge.group == 0) {
                resume();
            } else {
                resume_to_all();
            }
        } else if (hdr.packet_out.isValid() && hdr.packet_out.port != 0) {
            send_as_is();
        } else {
            frames.apply(hdr, meta, intrinsic.ingress_port);
        }

        slots.apply(hdr, meta, step);
        words.apply(hdr, meta, step);

        if (meta.task == TASK_CONTRIBUTE) {
            outcome.apply(hdr, meta);
            outcomes.count(meta.tally);
            if (meta.misplaced == 0) {
                worker_packets.count(meta.worker_tally);
                if (hdr.agg.flags[1:1] == 1) {
                    worker_repeats.count(meta.worker_tally);
                }
            }
            dispatch.apply();
            if (meta.words == WORDS_NONE) {
                if (meta.form == FORM_WORDS) {
                    remove_words();
                } else {
                    remove_zeros();
                }
            }
        } else if (meta.task == TASK_INIT) {
            if (meta.misplaced == 0) {
                meta.tally[4:0] = OUTCOME_INITIALISED;
                meta.way = WAY_PORT;
            } else {
                meta.tally[4:0] = OUTCOME_MISPLACED;
            }
            outcomes.count(meta.tally);
        } else if (meta.task == TASK_DELIVER && meta.form == FORM_WORDS) {
            hdr.bridge.words = 1;
        }
        exits.apply();
    }
}

control SwitchIngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                              in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr.bridge);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.tag);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.icmp);
        packet.emit(hdr.udp);
        packet.emit(hdr.agg);
        packet.emit(hdr.words);
        packet.emit(hdr.padding);
    }
}

struct egress_metadata_t {
    traffic_t traffic;
    form_t form;
    bit<1> bare;            /* the parser has left the words out */
}

parser SwitchEgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                          out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        meta.traffic = TRAFFIC_OTHER;
        meta.form = FORM_TRUNCATED;
        meta.bare = 0;
        transition select(hdr.bridge.again, hdr.bridge.next_hop) {
            (0, NEXT_HOP_ARP): parse_frame;
            (0, NEXT_HOP_ECHO): parse_frame;
            (0, NEXT_HOP_RESULT): parse_frame;
            (0, NEXT_HOP_RAISE): parse_frame;
            default: parse_bystander;
        }
    }

    state parse_bystander {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.rest);
        transition accept;
    }

#define PARSE_WORDS 0
#include "include/frame_states.p4"
#undef PARSE_WORDS
}

control SwitchEgress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
                     in egress_intrinsic_metadata_from_parser_t from_parser,
                     inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                     inout egress_intrinsic_metadata_for_output_port_t for_port) {
    Rewrite() rewrite;
    /* Frames whose station is where they came from. */
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) returned;
    /* Answers whose receiver is not in the table. */
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) unaddressed;
    bit<16> receiver;
#ifdef AGG_LOSS
    Loss() loss;
    bit<1> lost;
#endif

    action leave_words_out() {
        hdr.bridge.bare = 1;
        hdr.bridge.words = 0;
        hdr.padding.setValid();
        hdr.padding.zero = 0;
    }

    apply {
        if (meta.bare == 1) {
            leave_words_out();
        }
        if (!hdr.rest.isValid()) {
            receiver = hdr.bridge.receiver;
            if (receiver == 0) {
                receiver = intrinsic.egress_rid;
            }
            rewrite.apply(hdr, receiver);
            if (hdr.bridge.next_hop == NEXT_HOP_NOBODY) {
                unaddressed.count(0);
                for_deparser.drop_ctl = 1;
            }
        } else if (hdr.bridge.next_hop == NEXT_HOP_STATION && intrinsic.egress_port == hdr.bridge.from) {
            if (hdr.bridge.group == 0) {
                returned.count(0);
            }
            for_deparser.drop_ctl = 1;
        }
        if (intrinsic.egress_port == AGG_CONTROLLER_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.padding = 0;
            hdr.packet_in.port = hdr.bridge.from;
        }
        /* A recirculated packet keeps its bridge, for the ingress parser to find. */
        if (intrinsic.egress_port[6:0] != RECIRCULATION) {
            hdr.bridge.setInvalid();
        }
#ifdef AGG_LOSS
        loss.apply(intrinsic.egress_port, lost);
        if (lost == 1) {
            for_deparser.drop_ctl = 1;
        }
#endif
    }
}

control SwitchEgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                             in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;

    apply {
        /* Only answers of the switch itself are parsed here, so nobody else's header is mended. */
        hdr.ipv4.checksum = ipv4_checksum.update({
            hdr.ipv4.version,
            hdr.ipv4.header_words,
            hdr.ipv4.service,
            hdr.ipv4.bytes,
            hdr.ipv4.identification,
            hdr.ipv4.flags,
            hdr.ipv4.fragment_offset,
            hdr.ipv4.hops,
            hdr.ipv4.protocol,
            hdr.ipv4.source,
            hdr.ipv4.destination
        });
        packet.emit(hdr.packet_in);
        packet.emit(hdr.bridge);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.rest);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.icmp);
        packet.emit(hdr.udp);
        packet.emit(hdr.agg);
        packet.emit(hdr.padding);
    }
}

Pipeline(SwitchIngressParser(), SwitchIngress(), SwitchIngressDeparser(), SwitchEgressParser(), SwitchEgress(),
         SwitchEgressDeparser()) pipe;

Switch(pipe) main;
