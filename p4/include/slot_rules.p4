/* The outcome of an admitted packet under the slot rules: its receivers, and the counters that it adds to.

   One table of constants, the same on every target. It is read from the top:

     verdict   misplaced  duplicate  standing   words?  slot had words   op    ->
     stale                                                                     dropped: stale, or misplaced
     same                 yes        not full                                  dropped: duplicate
     same                 yes        full                                      the stored RESULT, to this worker
     fresh                                      no                             the round begins empty
     fresh                                      yes                            the round begins with these words
     same                 no         last?      no      no                     nothing to add, nothing there
     same                 no         last?      no      yes                    nothing to add
     same                 no         last?      yes     no                     the round's first words
     same                 no         last?      yes     yes              SUM   added
     same                 no         last?      yes     yes              OR    or-ed

   and where that was the last worker, the slot's words go to everybody. They are in the packet itself where they
   are the round's first. CE and ECT of all contributions go with them. */

#ifndef SWITCHAGG_SLOT_RULES_P4
#define SWITCHAGG_SLOT_RULES_P4

#include "metadata.p4"

control Outcome(inout headers_t hdr, inout metadata_t meta) {
    action discard(outcome_t how) {
        meta.tally[4:0] = how;
        meta.audience = AUDIENCE_NOBODY;
    }

    action take(outcome_t how) {
        meta.tally[4:0] = how;
        meta.audience = AUDIENCE_NOBODY;
    }

    action answer(source_t words) {
        meta.tally[4:0] = OUTCOME_ANSWERED;
        meta.audience = AUDIENCE_SENDER;
        meta.words = words;
        hdr.agg.flags = hdr.agg.flags | meta.filled;
    }

    action complete(outcome_t how, source_t words) {
        meta.tally[4:0] = how;
        meta.audience = AUDIENCE_ALL;
        meta.words = words;
        hdr.agg.reply = 0;
        hdr.agg.flags = hdr.agg.flags | meta.filled;
    }

    table outcome {
        key = {
            meta.verdict: ternary;
            meta.misplaced: ternary;
            meta.duplicate: ternary;
            meta.standing: ternary;
            meta.alone: ternary;
            meta.form: ternary;
            meta.filled: ternary;
            hdr.agg.op: ternary;
        }
        actions = {
            discard;
            take;
            answer;
            complete;
        }
        const default_action = discard(OUTCOME_STALE);
        const entries = {
            (VERDICT_STALE, 1, _, _, _, _, _, _): discard(OUTCOME_MISPLACED);
            (VERDICT_STALE, _, _, _, _, _, _, _): discard(OUTCOME_STALE);
            (VERDICT_SAME, _, 1, STANDING_FULL, _, _, 0 &&& 1, _): answer(WORDS_NONE);
            (VERDICT_SAME, _, 1, STANDING_FULL, _, _, 1 &&& 1, _): answer(WORDS_STORED);
            (VERDICT_SAME, _, 1, _, _, _, _, _): discard(OUTCOME_DUPLICATE);
            (VERDICT_FRESH, _, _, _, 1, FORM_SKIP, _, _): complete(OUTCOME_FRESH_SKIP + COMPLETING, WORDS_NONE);
            (VERDICT_FRESH, _, _, _, 0, FORM_SKIP, _, _): take(OUTCOME_FRESH_SKIP);
            (VERDICT_FRESH, _, _, _, 1, FORM_WORDS, _, _): complete(OUTCOME_FRESH_STORED + COMPLETING, WORDS_OWN);
            (VERDICT_FRESH, _, _, _, 0, FORM_WORDS, _, _): take(OUTCOME_FRESH_STORED);
            (VERDICT_SAME, _, 0, STANDING_LAST, _, FORM_SKIP, 0 &&& 1, _): complete(OUTCOME_EMPTY_SKIP + COMPLETING, WORDS_NONE);
            (VERDICT_SAME, _, 0, _, _, FORM_SKIP, 0 &&& 1, _): take(OUTCOME_EMPTY_SKIP);
            (VERDICT_SAME, _, 0, STANDING_LAST, _, FORM_SKIP, 1 &&& 1, _): complete(OUTCOME_SKIP + COMPLETING, WORDS_STORED);
            (VERDICT_SAME, _, 0, _, _, FORM_SKIP, 1 &&& 1, _): take(OUTCOME_SKIP);
            (VERDICT_SAME, _, 0, STANDING_LAST, _, FORM_WORDS, 0 &&& 1, _): complete(OUTCOME_STORED + COMPLETING, WORDS_OWN);
            (VERDICT_SAME, _, 0, _, _, FORM_WORDS, 0 &&& 1, _): take(OUTCOME_STORED);
            (VERDICT_SAME, _, 0, STANDING_LAST, _, FORM_WORDS, 1 &&& 1, OP_SUM): complete(OUTCOME_ADDED + COMPLETING, WORDS_STORED);
            (VERDICT_SAME, _, 0, _, _, FORM_WORDS, 1 &&& 1, OP_SUM): take(OUTCOME_ADDED);
            (VERDICT_SAME, _, 0, STANDING_LAST, _, FORM_WORDS, 1 &&& 1, OP_OR): complete(OUTCOME_ORED + COMPLETING, WORDS_STORED);
            (VERDICT_SAME, _, 0, _, _, FORM_WORDS, 1 &&& 1, OP_OR): take(OUTCOME_ORED);
        }
        CONST_SIZE(19)
    }

    apply {
        outcome.apply();
    }
}

#endif
