/* A slot's words on a Tofino, stages 4 to 11: eight words a stage, two in a register.

   What is read or computed is in the packet's even words afterwards; its odd ones take a second pass. */

#ifndef SWITCHAGG_WORDS_TNA_P4
#define SWITCHAGG_WORDS_TNA_P4

#include "metadata.p4"

struct pair_t {
    bit<32> even;
    bit<32> odd;
}

control Words(inout headers_t hdr, in metadata_t meta, in step_t step) {
#define AGG_WORD_TABLE(pair, low, high) \
    Register<pair_t, bit<16>>(AGG_SLOTS) pair_##pair; \
    RegisterAction<pair_t, bit<16>, bit<32>>(pair_##pair) store_##pair = { \
        void apply(inout pair_t stored) { \
            stored.even = hdr.words.w##low; \
            stored.odd = hdr.words.w##high; \
        } \
    }; \
    RegisterAction<pair_t, bit<16>, bit<32>>(pair_##pair) sum_##pair = { \
        void apply(inout pair_t stored, out bit<32> even) { \
            stored.even = stored.even + hdr.words.w##low; \
            stored.odd = stored.odd + hdr.words.w##high; \
            even = stored.even; \
        } \
    }; \
    RegisterAction<pair_t, bit<16>, bit<32>>(pair_##pair) or_##pair = { \
        void apply(inout pair_t stored, out bit<32> even) { \
            stored.even = stored.even | hdr.words.w##low; \
            stored.odd = stored.odd | hdr.words.w##high; \
            even = stored.even; \
        } \
    }; \
    RegisterAction<pair_t, bit<16>, bit<32>>(pair_##pair) second_##pair = { \
        void apply(inout pair_t stored, out bit<32> odd) { \
            odd = stored.odd; \
        } \
    }; \
    action do_store_##pair() { \
        store_##pair.execute(hdr.agg.slot); \
    } \
    action do_sum_##pair() { \
        hdr.words.w##low = sum_##pair.execute(hdr.agg.slot); \
    } \
    action do_or_##pair() { \
        hdr.words.w##low = or_##pair.execute(hdr.agg.slot); \
    } \
    action do_second_##pair() { \
        hdr.words.w##high = second_##pair.execute(hdr.agg.slot); \
    } \
    table words_##pair { \
        key = { \
            step: ternary; \
            meta.filled: ternary; \
        } \
        actions = { \
            do_store_##pair; \
            do_sum_##pair; \
            do_or_##pair; \
            do_second_##pair; \
            @defaultonly NoAction; \
        } \
        const default_action = NoAction(); \
        const entries = { \
            (STEP_STORE, _): do_store_##pair(); \
            (STEP_SUM, 0 &&& 1): do_store_##pair(); \
            (STEP_SUM, 1 &&& 1): do_sum_##pair(); \
            (STEP_OR, 0 &&& 1): do_store_##pair(); \
            (STEP_OR, 1 &&& 1): do_or_##pair(); \
            (STEP_READ, 1 &&& 1): do_or_##pair(); \
            (STEP_READ_SECOND, _): do_second_##pair(); \
        } \
        CONST_SIZE(7) \
    }
    AGG_FOR_EACH_PAIR(AGG_WORD_TABLE)

    apply {
#define AGG_APPLY_WORDS(pair, low, high) words_##pair.apply();
        AGG_FOR_EACH_PAIR(AGG_APPLY_WORDS)
    }
}

#endif
