/* Constants of both programs: sizes, codes of the wire, and codes between tables.

   The wire's own numbers (version, ops, flags, lengths) repeat switchagg/wire/header.py, and the codes of tables and
   counters repeat switchagg/p4program/program.py; tests hold them together. */

#ifndef SWITCHAGG_CONSTANTS_P4
#define SWITCHAGG_CONSTANTS_P4

/* K: 32-bit words in a packet, a multiple of 8 from 16 to 64. */
#ifndef AGG_WORDS
#define AGG_WORDS 64
#endif

/* Slots in the switch, all jobs together. */
#ifndef AGG_SLOTS
#define AGG_SLOTS 16384
#endif

/* Entries of the admission table. A job of n workers takes 3n + 4, plus 9 for the whole switch. */
#ifndef AGG_ADMISSIONS
#define AGG_ADMISSIONS 1024
#endif

/* Entries for RESULTs from a parent: a job of n workers takes n + 1. */
#ifndef AGG_DELIVERIES
#define AGG_DELIVERIES 512
#endif

/* Stations that the L2 table can hold. */
#ifndef AGG_STATIONS
#define AGG_STATIONS 4096
#endif

/* The port behind which the controller is: packets there have packet_out_h or packet_in_h in front. */
#ifndef AGG_CONTROLLER_PORT
#ifdef __TARGET_TOFINO__
#define AGG_CONTROLLER_PORT 192
#else
#define AGG_CONTROLLER_PORT 510
#endif
#endif

/* UDP port of the protocol. */
#ifndef AGG_UDP_PORT
#define AGG_UDP_PORT 48879
#endif

#define AGG_JOBS 256            /* jobs that can be counted apart */
#define AGG_RECEIVERS 8192      /* workers and parents that packets are addressed to */

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88A8;
const bit<8> PROTOCOL_ICMP = 1;
const bit<8> PROTOCOL_UDP = 17;

const bit<4> OP_SUM = 0;
const bit<4> OP_OR = 1;
const bit<4> OP_RESULT = 2;                 /* 3, INIT, and the version are in the entries of admission */

#define ECN_FLAGS 0x18                      /* CE and ECT in the protocol's flags */

/* Lengths of a UDP datagram and of its IPv4 packet, without and with words. */
#define UDP_BYTES_BARE 24
#define UDP_BYTES_FULL (24 + 4 * AGG_WORDS)
#define IPV4_BYTES_BARE 44
#define IPV4_BYTES_FULL (44 + 4 * AGG_WORDS)

/* The parser's verdict: is the packet for us, and has it the form of the protocol? */
typedef bit<3> traffic_t;
#ifdef __TARGET_TOFINO__
const traffic_t TRAFFIC_OTHER = 0;          /* v1model's metadata begin as zeros */
#endif
const traffic_t TRAFFIC_ARP = 1;            /* an ARP request */
const traffic_t TRAFFIC_ECHO = 2;           /* an ICMP echo request */
const traffic_t TRAFFIC_AGGREGATION = 3;    /* UDP to the protocol's port */
const traffic_t TRAFFIC_TAGS = 4;           /* more than one VLAN tag */

typedef bit<3> form_t;                      /* bit 2: well formed for this switch's K; bit 0 then: words */
const form_t FORM_TRUNCATED = 0;            /* no room for a header */
const form_t FORM_RAGGED = 1;               /* length and payload flag do not agree, or broken words */
const form_t FORM_OTHER_WORDS = 2;          /* words, but not K of them */
const form_t FORM_SKIP = 4;
const form_t FORM_WORDS = 5;

/* Admission's verdict on a packet of the protocol. */
typedef bit<3> task_t;
const task_t TASK_NONE = 0;
const task_t TASK_CONTRIBUTE = 1;           /* a worker's packet */
const task_t TASK_INIT = 2;                 /* the controller sets a slot */
const task_t TASK_DELIVER = 3;              /* a parent's RESULT, on its way to the workers */
#ifdef __TARGET_TOFINO__
const task_t TASK_READ_SECOND = 4;          /* second pass: fetch the other half of the words */
#endif

/* A slot's round against the packet's; one bit each, as a Tofino's predicate output gives it:
   bit 2 * (second comparison) + (first comparison). */
typedef bit<4> verdict_t;
const verdict_t VERDICT_STALE = 1;
const verdict_t VERDICT_FRESH = 2;          /* seq = slot.seq + P */
const verdict_t VERDICT_SAME = 4;           /* seq = slot.seq */

/* The workers missing from a slot's round before this packet, likewise. */
typedef bit<4> standing_t;
const standing_t STANDING_OTHERS = 1;       /* others, or others and this worker */
const standing_t STANDING_FULL = 2;         /* nobody */
const standing_t STANDING_LAST = 4;         /* this worker alone */

/* Operations on a slot's words. */
typedef bit<3> step_t;
const step_t STEP_NONE = 0;
const step_t STEP_STORE = 1;                /* the packet's become the slot's */
const step_t STEP_SUM = 2;                  /* both become their sum; the packet's, where the slot has none */
const step_t STEP_OR = 3;                   /* likewise with bitwise or */
const step_t STEP_READ = 4;                 /* the slot's become the packet's */
#ifdef __TARGET_TOFINO__
const step_t STEP_READ_SECOND = 5;          /* the same for the odd half */
#endif

/* Destinations of a packet, as the slot rules decide. */
typedef bit<2> audience_t;
const audience_t AUDIENCE_NOBODY = 0;
const audience_t AUDIENCE_SENDER = 1;       /* the worker that asked again */
const audience_t AUDIENCE_ALL = 2;          /* every worker: the slot became full */

/* The words that a packet carries. */
typedef bit<2> source_t;
const source_t WORDS_NONE = 0;
const source_t WORDS_OWN = 1;               /* those that it came with: no register has others */
const source_t WORDS_STORED = 2;            /* the slot's */

/* Outcomes of admitted packets, for counting. An accepted packet's is 16 + 8 * (slot became full) + how. */
typedef bit<5> outcome_t;
const outcome_t OUTCOME_STALE = 0;
const outcome_t OUTCOME_DUPLICATE = 1;
const outcome_t OUTCOME_MISPLACED = 2;      /* in the job's range, but not base + (seq mod P) */
const outcome_t OUTCOME_ANSWERED = 3;
const outcome_t OUTCOME_INITIALISED = 4;
const outcome_t OUTCOME_SKIP = 16;          /* a SKIP into a slot with words */
const outcome_t OUTCOME_EMPTY_SKIP = 17;    /* a SKIP into a slot without */
const outcome_t OUTCOME_STORED = 18;
const outcome_t OUTCOME_ADDED = 19;
const outcome_t OUTCOME_ORED = 20;
const outcome_t OUTCOME_FRESH_SKIP = 21;
const outcome_t OUTCOME_FRESH_STORED = 22;
const outcome_t COMPLETING = 8;

/* Bridged next hop: the egress rewrites the packet for it. */
typedef bit<4> next_hop_t;
const next_hop_t NEXT_HOP_FORWARD = 0;      /* nothing: it only passes through */
const next_hop_t NEXT_HOP_STATION = 1;      /* nothing, but not back where it came from */
const next_hop_t NEXT_HOP_ARP = 2;
const next_hop_t NEXT_HOP_ECHO = 3;
const next_hop_t NEXT_HOP_RESULT = 4;       /* a RESULT to a worker */
const next_hop_t NEXT_HOP_RAISE = 5;        /* a contribution to the parent */
const next_hop_t NEXT_HOP_NOBODY = 6;       /* nothing: nobody is known who should get it */

/* Ways for a packet to leave ingress. */
typedef bit<2> way_t;
const way_t WAY_NONE = 0;                   /* it ends here */
const way_t WAY_PORT = 1;                   /* by bridge.port */
const way_t WAY_GROUP = 2;                  /* by the multicast group bridge.group */

#endif
