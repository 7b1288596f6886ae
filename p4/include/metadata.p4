/* Metadata of a packet in a pipeline. */

#ifndef SWITCHAGG_METADATA_P4
#define SWITCHAGG_METADATA_P4

#include "headers.p4"

struct metadata_t {
    traffic_t traffic;
    form_t form;

    /* From admission. */
    task_t task;
    way_t way;
    bit<5> slots_log;       /* P = 2^slots_log */
    bit<32> worker;         /* this worker's bit */
    bit<32> others;         /* the bits of all other workers */
    bit<32> previous;       /* seq - P: what a slot holds for which this packet is fresh */
    bit<1> alone;           /* the job has this worker only */
    bit<1> leaf;            /* this switch adds for a parent */
    bit<13> tally;          /* index of the job's outcome counters; the outcome is in its last five bits */
    bit<13> worker_tally;   /* index of this worker's counters */
    bit<8> brought;         /* flags that the slot gathers: words, CE, ECT */

    /* From the slot rules. */
    bit<16> skew;           /* slot xor seq */
    bit<1> misplaced;       /* slot is not base + (seq mod P) */
    verdict_t verdict;
    standing_t standing;
    bit<32> crossed_off;    /* this worker's bit if it was missing, else 0 */
    bit<1> duplicate;       /* it was not missing */
    bit<8> filled;          /* of this round before this packet: bit 0, words; bits 3 and 4, CE and ECT */
    audience_t audience;
    source_t words;
}

#endif
