/* The slot rules on a Tofino, stages 1 to 3: which round, who was missing, whether there are words.

   Each register is reached once, and each table's answer is the next stage's key. See switchagg_tna.p4. */

#ifndef SWITCHAGG_SLOTS_TNA_P4
#define SWITCHAGG_SLOTS_TNA_P4

#include "metadata.p4"

control Slots(inout headers_t hdr, inout metadata_t meta, out step_t step) {
    Placement() placement;

    /* Stage 1: which round? */

    Register<bit<32>, bit<16>>(AGG_SLOTS) seq;

    RegisterAction<bit<32>, bit<16>, verdict_t>(seq) compare_round = {
        void apply(inout bit<32> round, out verdict_t verdict) {
            verdict = this.predicate(round == meta.previous, round == hdr.agg.seq);
            if (round == meta.previous) {
                round = hdr.agg.seq;
            }
        }
    };
    RegisterAction<bit<32>, bit<16>, verdict_t>(seq) set_round = {
        void apply(inout bit<32> round) {
            round = hdr.agg.seq;
        }
    };

    action compare() {
        meta.verdict = compare_round.execute(hdr.agg.slot);
    }

    action initialise() {
        set_round.execute(hdr.agg.slot);
    }

    /* An INIT in the wrong place of its job's range must not set anything: see Placement. */
    table rounds {
        key = {
            meta.task: ternary;
            meta.slots_log: ternary;
            meta.skew: ternary;
        }
        actions = {
            compare;
            initialise;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (TASK_CONTRIBUTE, _, _): compare();
            (TASK_INIT, 1, 0 &&& 0x0001): initialise();
            (TASK_INIT, 2, 0 &&& 0x0003): initialise();
            (TASK_INIT, 3, 0 &&& 0x0007): initialise();
            (TASK_INIT, 4, 0 &&& 0x000F): initialise();
            (TASK_INIT, 5, 0 &&& 0x001F): initialise();
            (TASK_INIT, 6, 0 &&& 0x003F): initialise();
            (TASK_INIT, 7, 0 &&& 0x007F): initialise();
            (TASK_INIT, 8, 0 &&& 0x00FF): initialise();
            (TASK_INIT, 9, 0 &&& 0x01FF): initialise();
            (TASK_INIT, 10, 0 &&& 0x03FF): initialise();
            (TASK_INIT, 11, 0 &&& 0x07FF): initialise();
            (TASK_INIT, 12, 0 &&& 0x0FFF): initialise();
            (TASK_INIT, 13, 0 &&& 0x1FFF): initialise();
            (TASK_INIT, 14, 0 &&& 0x3FFF): initialise();
            (TASK_INIT, 15, 0 &&& 0x7FFF): initialise();
            (TASK_INIT, 16, 0 &&& 0xFFFF): initialise();
        }
        CONST_SIZE(17)
    }

    /* Stage 2: who is missing? */

    Register<bit<32>, bit<16>>(AGG_SLOTS) missing;
    Register<bit<32>, bit<16>>(AGG_SLOTS) missing_again;

    RegisterAction<bit<32>, bit<16>, standing_t>(missing) set_missing = {
        void apply(inout bit<32> absent) {
            absent = meta.others;
        }
    };
    RegisterAction<bit<32>, bit<16>, standing_t>(missing) cross_off = {
        void apply(inout bit<32> absent, out standing_t standing) {
            standing = this.predicate(absent == 0, absent == meta.worker);
            absent = absent & ~meta.worker;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(missing_again) set_missing_again = {
        void apply(inout bit<32> absent) {
            absent = meta.others;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(missing_again) cross_off_again = {
        void apply(inout bit<32> absent, out bit<32> crossed_off) {
            crossed_off = absent & meta.worker;
            absent = absent & ~meta.worker;
        }
    };

    action begin_round() {
        set_missing.execute(hdr.agg.slot);
    }

    action begin_round_again() {
        set_missing_again.execute(hdr.agg.slot);
    }

    action join_round() {
        meta.standing = cross_off.execute(hdr.agg.slot);
    }

    action join_round_again() {
        meta.crossed_off = cross_off_again.execute(hdr.agg.slot);
    }

    table attendance {
        key = {
            meta.task: ternary;
            meta.misplaced: ternary;
            meta.verdict: ternary;
        }
        actions = {
            begin_round;
            join_round;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (TASK_CONTRIBUTE, _, VERDICT_FRESH): begin_round();
            (TASK_CONTRIBUTE, _, VERDICT_SAME): join_round();
            (TASK_INIT, 0, _): begin_round();
        }
        CONST_SIZE(3)
    }

    table attendance_again {
        key = {
            meta.task: ternary;
            meta.misplaced: ternary;
            meta.verdict: ternary;
        }
        actions = {
            begin_round_again;
            join_round_again;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (TASK_CONTRIBUTE, _, VERDICT_FRESH): begin_round_again();
            (TASK_CONTRIBUTE, _, VERDICT_SAME): join_round_again();
            (TASK_INIT, 0, _): begin_round_again();
        }
        CONST_SIZE(3)
    }

    /* Stage 3: has the slot words, and what is to be done to them? */

    Register<bit<8>, bit<16>>(AGG_SLOTS) filled;

    RegisterAction<bit<8>, bit<16>, bit<8>>(filled) empty = {
        void apply(inout bit<8> flags) {
            flags = 0;
        }
    };
    RegisterAction<bit<8>, bit<16>, bit<8>>(filled) begin = {
        void apply(inout bit<8> flags) {
            flags = meta.brought;
        }
    };
    RegisterAction<bit<8>, bit<16>, bit<8>>(filled) gather = {
        void apply(inout bit<8> flags, out bit<8> before) {
            before = flags;
            flags = flags | meta.brought;
        }
    };
    RegisterAction<bit<8>, bit<16>, bit<8>>(filled) look = {
        void apply(inout bit<8> flags, out bit<8> before) {
            before = flags;
        }
    };

    action empty_slot() {
        empty.execute(hdr.agg.slot);
    }

    action begin_slot() {
        begin.execute(hdr.agg.slot);
    }

    action add_to_slot() {
        meta.filled = gather.execute(hdr.agg.slot);
    }

    action look_at_slot() {
        meta.filled = look.execute(hdr.agg.slot);
    }

    table fillings {
        key = {
            meta.task: ternary;
            meta.misplaced: ternary;
            meta.verdict: ternary;
            meta.crossed_off: ternary;
        }
        actions = {
            empty_slot;
            begin_slot;
            add_to_slot;
            look_at_slot;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (TASK_CONTRIBUTE, _, VERDICT_FRESH, _): begin_slot();
            (TASK_CONTRIBUTE, _, VERDICT_SAME, 0): look_at_slot();
            (TASK_CONTRIBUTE, _, VERDICT_SAME, _): add_to_slot();
            (TASK_INIT, 0, _, _): empty_slot();
        }
        CONST_SIZE(4)
    }

    action do_step(step_t what) {
        step = what;
        meta.duplicate = 0;
    }

    /* Words that came, if any, are not to be combined: zeroed, they leave room for the slot's. */
    action do_read(bit<1> duplicate) {
        step = STEP_READ;
        meta.duplicate = duplicate;
        hdr.words.setValid();
#define AGG_ZERO(pair, low, high) \
        hdr.words.w##low = 0; \
        hdr.words.w##high = 0;
        AGG_FOR_EACH_PAIR(AGG_ZERO)
    }

    table steps {
        key = {
            meta.task: ternary;
            meta.verdict: ternary;
            meta.crossed_off: ternary;
            meta.form: ternary;
            hdr.agg.op: ternary;
        }
        actions = {
            do_step;
            do_read;
        }
        const default_action = do_step(STEP_NONE);
        const entries = {
            (TASK_READ_SECOND, _, _, _, _): do_step(STEP_READ_SECOND);
            (TASK_CONTRIBUTE, VERDICT_FRESH, _, FORM_WORDS, _): do_step(STEP_STORE);
            (TASK_CONTRIBUTE, VERDICT_SAME, 0, _, _): do_read(1);
            (TASK_CONTRIBUTE, VERDICT_SAME, _, FORM_SKIP, _): do_read(0);
            (TASK_CONTRIBUTE, VERDICT_SAME, _, FORM_WORDS, OP_SUM): do_step(STEP_SUM);
            (TASK_CONTRIBUTE, VERDICT_SAME, _, FORM_WORDS, OP_OR): do_step(STEP_OR);
        }
        CONST_SIZE(6)
    }

    apply {
        rounds.apply();
        placement.apply(meta);
        attendance.apply();
        attendance_again.apply();
        fillings.apply();
        steps.apply();
    }
}

#endif
