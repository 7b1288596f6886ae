/* A slot's words on bmv2: a register for each. What is read or computed is in the packet's words afterwards. */

#ifndef SWITCHAGG_WORDS_V1MODEL_P4
#define SWITCHAGG_WORDS_V1MODEL_P4

#include "metadata.p4"

control Words(inout headers_t hdr, in bit<32> slot, in step_t step) {
#define AGG_REGISTERS(pair, low, high) \
    register<bit<32>>(AGG_SLOTS) word_##low; \
    register<bit<32>>(AGG_SLOTS) word_##high;
    AGG_FOR_EACH_PAIR(AGG_REGISTERS)

    action store() {
#define AGG_STORE(pair, low, high) \
        word_##low.write(slot, hdr.words.w##low); \
        word_##high.write(slot, hdr.words.w##high);
        AGG_FOR_EACH_PAIR(AGG_STORE)
    }

#define AGG_COMBINE(word, operation) \
        word_##word.read(stored, slot); \
        hdr.words.w##word = hdr.words.w##word operation stored; \
        word_##word.write(slot, hdr.words.w##word);

    action sum() {
        bit<32> stored;
#define AGG_SUM(pair, low, high) AGG_COMBINE(low, +) AGG_COMBINE(high, +)
        AGG_FOR_EACH_PAIR(AGG_SUM)
    }

    action or() {
        bit<32> stored;
#define AGG_OR(pair, low, high) AGG_COMBINE(low, |) AGG_COMBINE(high, |)
        AGG_FOR_EACH_PAIR(AGG_OR)
    }

    action read() {
        hdr.words.setValid();
#define AGG_READ(pair, low, high) \
        word_##low.read(hdr.words.w##low, slot); \
        word_##high.read(hdr.words.w##high, slot);
        AGG_FOR_EACH_PAIR(AGG_READ)
    }

    apply {
        if (step == STEP_STORE) {
            store();
        } else if (step == STEP_SUM) {
            sum();
        } else if (step == STEP_OR) {
            or();
        } else if (step == STEP_READ) {
            read();
        }
    }
}

#endif
