/* Admission: the slots that each packet may touch.

   `admission` holds, from high to low priority: a worker's packets with all that must be right about them; the
   same without the slot, then without the token; a job's packets from anybody; and the packets that are wrong in
   general. So the entry that a refused packet hits is the reason, and the entry's counter counts it:

       port form version op source port job token slot
        x     x     x     x    x     x   x    x    x     contribute
        x     x     x     x    x     x   x    x          refuse: slot
        x     x     x     x    x     x   x               refuse: token
              x     x     x              x               refuse: source
          other K   x     x              x               refuse: length
              x     x     x                              refuse: job
                    x     x                              refuse: length
                    x                                    refuse: op
        form: truncated                                  refuse: truncated
                                                         refuse: version

   with the like for the controller's port. RESULTs have a table of their own, `deliveries`: below a parent they are its
   answers, and anything else is refused. Well-formed packets of either form (SKIP, words) match one entry.

   COUNTED and COUNT are the target's: a Tofino counts where an action says so, bmv2 wherever an entry is hit. */

#ifndef SWITCHAGG_ADMISSION_P4
#define SWITCHAGG_ADMISSION_P4

#include "metadata.p4"

control Admission(inout headers_t hdr, inout metadata_t meta, in port_t ingress_port) {
    /* A contribution that is directed, and no repeat, names in `reply` the one worker that needs the words. */
    action name_reader() {
        hdr.bridge.reader = hdr.agg.reply;
    }

    table direction {
        key = {
            hdr.agg.flags: ternary;
        }
        actions = {
            name_reader;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            4 &&& 6: name_reader();
        }
        CONST_SIZE(1)
    }

    /* CE in the IP header (RFC 3168) stays in the flags, and in the slot's. */
    action take_up() {
        meta.brought = hdr.agg.flags & (ECN_FLAGS | 1);
    }

    action take_up_ce(bit<8> brought) {
        meta.brought = brought;
        hdr.agg.flags = hdr.agg.flags | ECN_FLAGS;
    }

    table ecn {
        key = {
            hdr.ipv4.service: ternary;
            hdr.agg.flags: ternary;
        }
        actions = {
            take_up;
            take_up_ce;
        }
        const default_action = take_up();
        const entries = {
            (3 &&& 3, 0 &&& 1): take_up_ce(ECN_FLAGS);
            (3 &&& 3, 1 &&& 1): take_up_ce(ECN_FLAGS | 1);
        }
        CONST_SIZE(2)
    }

    DIRECT_COUNTER(admission_packets)
    DIRECT_COUNTER(delivery_packets)

    /* A worker's packet, where this switch has the results: they go to all by `group`, and to this worker alone
       by `port`. */
    action contribute(bit<32> worker, bit<32> others, bit<32> minus_slots, bit<5> slots_log, bit<1> alone,
                      port_t port, bit<16> receiver, bit<16> group, bit<13> tally, bit<13> worker_tally) {
        COUNT(admission_packets)
        meta.task = TASK_CONTRIBUTE;
        meta.worker = worker;
        meta.others = others;
        meta.previous = hdr.agg.seq + minus_slots;
        meta.slots_log = slots_log;
        meta.alone = alone;
        meta.leaf = 0;
        meta.tally = tally;
        meta.worker_tally = worker_tally;
        hdr.bridge.next_hop = NEXT_HOP_RESULT;
        hdr.bridge.port = port;
        hdr.bridge.receiver = receiver;
        hdr.bridge.group = group;
    }

    /* A worker's packet, where this switch adds for a parent, which is `receiver` behind `port`. reply: the
       worker's number + 1, for the parent to send back. */
    action contribute_below(bit<32> worker, bit<32> others, bit<32> minus_slots, bit<5> slots_log, bit<1> alone,
                            port_t port, bit<16> receiver, bit<16> reply, bit<13> tally, bit<13> worker_tally) {
        COUNT(admission_packets)
        meta.task = TASK_CONTRIBUTE;
        meta.worker = worker;
        meta.others = others;
        meta.previous = hdr.agg.seq + minus_slots;
        meta.slots_log = slots_log;
        meta.alone = alone;
        meta.leaf = 1;
        meta.tally = tally;
        meta.worker_tally = worker_tally;
        hdr.bridge.next_hop = NEXT_HOP_RAISE;
        hdr.bridge.port = port;
        hdr.bridge.receiver = receiver;
        hdr.agg.reply = reply;
    }

    /* The controller sets a slot; port: the way back to it. */
    action initialise(bit<5> slots_log, port_t port, bit<13> tally) {
        COUNT(admission_packets)
        meta.task = TASK_INIT;
        meta.slots_log = slots_log;
        meta.others = 0;
        meta.tally = tally;
        hdr.bridge.port = port;
    }

    /* The entry is the reason, and its counter counts it. */
    action refuse() {
        COUNT(admission_packets)
    }

    table admission {
        key = {
            ingress_port: ternary;
            meta.form: ternary;
            hdr.agg.version: ternary;
            hdr.agg.op: ternary;
            hdr.ipv4.source: ternary @name("ipv4_source");
            hdr.udp.source: ternary @name("udp_source");
            hdr.agg.job: ternary;
            hdr.agg.token: ternary;
            hdr.agg.slot: ternary;
        }
        actions = {
            contribute;
            contribute_below;
            initialise;
            refuse;
        }
        const default_action = refuse();
        counters = admission_packets;
        size = AGG_ADMISSIONS;
    }

    /* A parent's RESULT for all workers below this switch. */
    action deliver_all(bit<16> group) {
        COUNT(delivery_packets)
        meta.task = TASK_DELIVER;
        meta.way = WAY_GROUP;
        hdr.bridge.next_hop = NEXT_HOP_RESULT;
        hdr.bridge.group = group;
        hdr.bridge.bare = hdr.agg.flags[2:2];
    }

    /* A parent's RESULT for the one worker that it names in `reply`. */
    action deliver_one(port_t port, bit<16> receiver) {
        COUNT(delivery_packets)
        meta.task = TASK_DELIVER;
        meta.way = WAY_PORT;
        hdr.bridge.next_hop = NEXT_HOP_RESULT;
        hdr.bridge.port = port;
        hdr.bridge.receiver = receiver;
        hdr.bridge.bare = hdr.agg.flags[2:2];
        hdr.agg.reply = 0;
    }

    /* Nobody else may send a RESULT to a switch. */
    action refuse_result() {
        COUNT(delivery_packets)
    }

    table deliveries {
        key = {
            ingress_port: ternary;
            meta.form: ternary;
            hdr.agg.version: ternary;
            hdr.agg.op: ternary;
            hdr.ipv4.source: ternary @name("ipv4_source");
            hdr.udp.source: ternary @name("udp_source");
            hdr.agg.job: ternary;
            hdr.agg.token: ternary;
            hdr.agg.slot: ternary;
            hdr.agg.reply: ternary;
        }
        actions = {
            deliver_all;
            deliver_one;
            refuse_result;
        }
        const default_action = refuse_result();
        counters = delivery_packets;
        size = AGG_DELIVERIES;
    }

    apply {
        direction.apply();
        ecn.apply();
        if (meta.form != FORM_TRUNCATED && hdr.agg.op == OP_RESULT) {
            deliveries.apply();
        } else {
            admission.apply();
        }
    }
}

/* Is the slot base + (seq mod P)? Its high bits are: admission looked at them. So slot and seq must agree in the
   low ones. */
control Placement(inout metadata_t meta) {
    action fits() {
        meta.misplaced = 0;
    }

    action misplaced() {
        meta.misplaced = 1;
    }

    table placement {
        key = {
            meta.slots_log: exact;
            meta.skew: ternary;
        }
        actions = {
            fits;
            misplaced;
        }
        const default_action = misplaced();
        const entries = {
            (1, 0 &&& 0x0001): fits();
            (2, 0 &&& 0x0003): fits();
            (3, 0 &&& 0x0007): fits();
            (4, 0 &&& 0x000F): fits();
            (5, 0 &&& 0x001F): fits();
            (6, 0 &&& 0x003F): fits();
            (7, 0 &&& 0x007F): fits();
            (8, 0 &&& 0x00FF): fits();
            (9, 0 &&& 0x01FF): fits();
            (10, 0 &&& 0x03FF): fits();
            (11, 0 &&& 0x07FF): fits();
            (12, 0 &&& 0x0FFF): fits();
            (13, 0 &&& 0x1FFF): fits();
            (14, 0 &&& 0x3FFF): fits();
            (15, 0 &&& 0x7FFF): fits();
            (16, 0 &&& 0xFFFF): fits();
        }
        CONST_SIZE(16)
    }

    apply {
        placement.apply();
    }
}

#endif
