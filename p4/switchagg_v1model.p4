/* The switch for bmv2 (v1model).

       parser -> ingress: frames --+-- own addresses, stations               -> port or group
                                   `-- admission, placement, slot rules      -> port or group
              -> egress:  receivers (addresses, lengths) -> checksum -> deparser

   The slot rules are those of switchagg/rules/slots.py. A slot's round, who is missing from it, whether it has words, and
   the words are registers under the slot's number. bmv2 runs one packet after the other through ingress, so a
   register is read and written as any variable; a Tofino cannot, and switchagg_tna.p4 says how it gets by. */

#include <core.p4>
#include <v1model.p4>

#define DIRECT_COUNTER(name) direct_counter(CounterType.packets) name;
#define COUNT(name)
#define CONTROLLER_HEADER(name) @controller_header(name)
#define CONST_SIZE(entries)

#include "include/headers.p4"
#include "include/metadata.p4"

#include "include/ethernet.p4"
#include "include/words_v1model.p4"
#include "include/slot_rules.p4"
#include "include/rewrite.p4"
#ifdef AGG_LOSS
#include "include/loss_v1model.p4"
#endif

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            AGG_CONTROLLER_PORT: parse_packet_out;
            default: parse_frame;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_frame;
    }

#define PARSE_WORDS 1
#include "include/frame_states.p4"
#undef PARSE_WORDS
}

control SwitchVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Frames() frames;
    Placement() placement;
    Outcome() outcome;
    Words() words;
#ifdef AGG_LOSS
    Loss() loss;
#endif

    counter(AGG_JOBS * 32, CounterType.packets) outcomes;           /* by job and outcome */
    counter(AGG_JOBS * 32, CounterType.packets) worker_packets;     /* by job and worker */
    counter(AGG_JOBS * 32, CounterType.packets) worker_repeats;     /* of these, flagged as sent before */
    counter(1, CounterType.packets) malformed;                      /* frames that end before their headers do */

    register<bit<32>>(AGG_SLOTS) seq;
    register<bit<32>>(AGG_SLOTS) missing;       /* the bits of workers whose packet has not come */
    register<bit<8>>(AGG_SLOTS) filled;         /* flags of the round's packets: words, CE, ECT */

    bit<32> slot;
    bit<32> round;
    bit<32> absent;
    step_t step;
    bit<1> lost;

    /* The words that came in do not go out; the frame stays as long as Ethernet wants it. */
    action remove_words() {
        hdr.words.setInvalid();
        hdr.padding.setValid();
        hdr.padding.zero = 0;
    }

    action initialise() {
        seq.write(slot, hdr.agg.seq);
        missing.write(slot, 0);
        filled.write(slot, 0);
        meta.tally[4:0] = OUTCOME_INITIALISED;
        meta.way = WAY_PORT;
    }

    action begin_round() {
        seq.write(slot, hdr.agg.seq);
        missing.write(slot, meta.others);
        filled.write(slot, meta.brought);
        meta.filled = 0;
    }

    action join_round() {
        missing.write(slot, absent & ~meta.worker);
        filled.write(slot, meta.filled | meta.brought);
    }

    apply {
        hdr.bridge.setValid();
        hdr.bridge.next_hop = NEXT_HOP_FORWARD;
        hdr.bridge.words = 0;
        hdr.bridge.again = 0;
        hdr.bridge.port = 0;
        hdr.bridge.from = standard_metadata.ingress_port;
        hdr.bridge.receiver = 0;
        hdr.bridge.group = 0;
        hdr.bridge.reader = 0;
        hdr.bridge.bare = 0;
        meta.way = WAY_NONE;
        meta.task = TASK_NONE;
        lost = 0;

#ifdef AGG_LOSS
        loss.apply(standard_metadata.ingress_port, lost);
#endif
        if (standard_metadata.parser_error != error.NoError) {
            malformed.count(0);
        } else if (lost == 0) {
            if (hdr.packet_out.isValid() && hdr.packet_out.port != 0) {
                hdr.bridge.port = hdr.packet_out.port;
                meta.way = WAY_PORT;
            } else {
                frames.apply(hdr, meta, standard_metadata.ingress_port);
            }
        }

        if (meta.task == TASK_DELIVER) {
            if (meta.form == FORM_WORDS) {
                hdr.bridge.words = 1;
            }
        } else if (meta.task != TASK_NONE) {
            slot = (bit<32>)hdr.agg.slot;
            meta.skew = hdr.agg.slot ^ hdr.agg.seq[15:0];
            placement.apply(meta);

            if (meta.task == TASK_INIT) {
                if (meta.misplaced == 0) {
                    initialise();
                } else {
                    meta.tally[4:0] = OUTCOME_MISPLACED;
                }
                outcomes.count((bit<32>)meta.tally);
            } else if (meta.task == TASK_CONTRIBUTE) {
                seq.read(round, slot);
                missing.read(absent, slot);
                filled.read(meta.filled, slot);

                meta.verdict = VERDICT_STALE;
                meta.standing = STANDING_OTHERS;
                meta.duplicate = 0;
                step = STEP_NONE;
                if (round == meta.previous) {
                    meta.verdict = VERDICT_FRESH;
                    begin_round();
                    if (meta.form == FORM_WORDS) {
                        step = STEP_STORE;
                    }
                } else if (round == hdr.agg.seq) {
                    meta.verdict = VERDICT_SAME;
                    if (absent == 0) {
                        meta.standing = STANDING_FULL;
                    } else if (absent == meta.worker) {
                        meta.standing = STANDING_LAST;
                    }
                    meta.crossed_off = absent & meta.worker;
                    if (meta.crossed_off == 0) {
                        meta.duplicate = 1;
                    } else {
                        join_round();
                        if (meta.form == FORM_WORDS) {
                            if (meta.filled[0:0] == 0) {
                                step = STEP_STORE;
                            } else if (hdr.agg.op == OP_SUM) {
                                step = STEP_SUM;
                            } else {
                                step = STEP_OR;
                            }
                        }
                    }
                }

                outcome.apply(hdr, meta);
                outcomes.count((bit<32>)meta.tally);
                if (meta.misplaced == 0) {
                    worker_packets.count((bit<32>)meta.worker_tally);
                    if (hdr.agg.flags[1:1] == 1) {
                        worker_repeats.count((bit<32>)meta.worker_tally);
                    }
                }

                if (step == STEP_NONE && meta.audience != AUDIENCE_NOBODY && meta.words == WORDS_STORED) {
                    step = STEP_READ;
                }
                words.apply(hdr, slot, step);

                if (meta.audience != AUDIENCE_NOBODY) {
                    if (meta.words == WORDS_NONE) {
                        hdr.bridge.words = 0;
                        if (hdr.words.isValid()) {
                            remove_words();
                        }
                    } else {
                        hdr.bridge.words = 1;
                    }
                    if (meta.audience == AUDIENCE_ALL && meta.leaf == 0) {
                        hdr.bridge.receiver = 0;
                        meta.way = WAY_GROUP;
                    } else {
                        meta.way = WAY_PORT;
                    }
                    if (meta.audience == AUDIENCE_SENDER) {
                        hdr.bridge.reader = 0;
                    }
                }
            }
        }

        hdr.packet_out.setInvalid();
        if (meta.way == WAY_PORT) {
            standard_metadata.egress_spec = hdr.bridge.port;
        } else if (meta.way == WAY_GROUP) {
            standard_metadata.mcast_grp = hdr.bridge.group;
        } else {
            mark_to_drop(standard_metadata);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Rewrite() rewrite;
    counter(1, CounterType.packets) returned;       /* frames whose station is where they came from */
    counter(1, CounterType.packets) unaddressed;    /* answers whose receiver is not in the table */
    bit<16> receiver;
#ifdef AGG_LOSS
    Loss() loss;
    bit<1> lost;
#endif

    action leave_words_out() {
        hdr.bridge.bare = 1;
        hdr.bridge.words = 0;
        hdr.words.setInvalid();
        hdr.padding.setValid();
        hdr.padding.zero = 0;
    }

    apply {
        if (hdr.bridge.next_hop == NEXT_HOP_STATION) {
            if (standard_metadata.egress_port == hdr.bridge.from) {
                if (hdr.bridge.group == 0) {
                    returned.count(0);
                }
                mark_to_drop(standard_metadata);
            }
        } else if (hdr.bridge.next_hop != NEXT_HOP_FORWARD) {
            receiver = hdr.bridge.receiver;
            if (receiver == 0) {
                receiver = standard_metadata.egress_rid;
                /* A worker's number ends with its bit + 1, in six bits. */
                if (hdr.bridge.words == 1 && hdr.bridge.reader != 0 && (receiver & 0x3F) != hdr.bridge.reader) {
                    leave_words_out();
                }
            }
            rewrite.apply(hdr, receiver);
            if (hdr.bridge.next_hop == NEXT_HOP_NOBODY) {
                unaddressed.count(0);
                mark_to_drop(standard_metadata);
            }
        }
        if (standard_metadata.egress_port == AGG_CONTROLLER_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.padding = 0;
            hdr.packet_in.port = hdr.bridge.from;
        }
#ifdef AGG_LOSS
        loss.apply(standard_metadata.egress_port, lost);
        if (lost == 1) {
            mark_to_drop(standard_metadata);
        }
#endif
    }
}

control SwitchComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            hdr.bridge.next_hop == NEXT_HOP_RESULT || hdr.bridge.next_hop == NEXT_HOP_RAISE ||
                hdr.bridge.next_hop == NEXT_HOP_ECHO,
            {
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
            },
            hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
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

V1Switch(SwitchParser(), SwitchVerifyChecksum(), SwitchIngress(), SwitchEgress(), SwitchComputeChecksum(),
         SwitchDeparser()) main;
