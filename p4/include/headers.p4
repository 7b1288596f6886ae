/* Headers of both programs.

   words_h has one field a word, w0 to w(K-1), because a Tofino's tables reach a word only by a name of its own.
   AGG_FOR_EACH_WORD and AGG_FOR_EACH_PAIR spell a macro out for each word, or for words 2i and 2i + 1. */

#ifndef SWITCHAGG_HEADERS_P4
#define SWITCHAGG_HEADERS_P4

#include "constants.p4"

#if AGG_WORDS % 8 != 0 || AGG_WORDS < 16 || AGG_WORDS > 64
#error "AGG_WORDS must be a multiple of 8 from 16 to 64"
#endif

#define AGG_PAIRS_0(M) M(0, 0, 1) M(1, 2, 3) M(2, 4, 5) M(3, 6, 7)
#define AGG_PAIRS_1(M) M(4, 8, 9) M(5, 10, 11) M(6, 12, 13) M(7, 14, 15)
#if AGG_WORDS >= 24
#define AGG_PAIRS_2(M) M(8, 16, 17) M(9, 18, 19) M(10, 20, 21) M(11, 22, 23)
#else
#define AGG_PAIRS_2(M)
#endif
#if AGG_WORDS >= 32
#define AGG_PAIRS_3(M) M(12, 24, 25) M(13, 26, 27) M(14, 28, 29) M(15, 30, 31)
#else
#define AGG_PAIRS_3(M)
#endif
#if AGG_WORDS >= 40
#define AGG_PAIRS_4(M) M(16, 32, 33) M(17, 34, 35) M(18, 36, 37) M(19, 38, 39)
#else
#define AGG_PAIRS_4(M)
#endif
#if AGG_WORDS >= 48
#define AGG_PAIRS_5(M) M(20, 40, 41) M(21, 42, 43) M(22, 44, 45) M(23, 46, 47)
#else
#define AGG_PAIRS_5(M)
#endif
#if AGG_WORDS >= 56
#define AGG_PAIRS_6(M) M(24, 48, 49) M(25, 50, 51) M(26, 52, 53) M(27, 54, 55)
#else
#define AGG_PAIRS_6(M)
#endif
#if AGG_WORDS >= 64
#define AGG_PAIRS_7(M) M(28, 56, 57) M(29, 58, 59) M(30, 60, 61) M(31, 62, 63)
#else
#define AGG_PAIRS_7(M)
#endif

#define AGG_FOR_EACH_PAIR(M) \
    AGG_PAIRS_0(M) AGG_PAIRS_1(M) AGG_PAIRS_2(M) AGG_PAIRS_3(M) \
    AGG_PAIRS_4(M) AGG_PAIRS_5(M) AGG_PAIRS_6(M) AGG_PAIRS_7(M)

typedef bit<48> mac_t;
typedef bit<32> ip_t;
typedef bit<9> port_t;

/* In front of what the controller sends and gets. port 0: run the frame through the switch as if it had come in
   at the controller's port; another: send it out there as it is. */
CONTROLLER_HEADER("packet_out")
header packet_out_h {
    bit<7> padding;
    port_t port;
}

CONTROLLER_HEADER("packet_in")
header packet_in_h {
    bit<7> padding;
    port_t port;            /* where it came in */
}

/* Bridged metadata: from ingress to egress, and on a Tofino from the first pass to the second. It stays inside.
   What one action writes and another leaves has bytes of its own, because a Tofino writes whole containers. */
header bridge_h {
    bit<4> next_hop_padding;
    next_hop_t next_hop;
    bit<7> words_padding;
    bit<1> words;           /* words follow the protocol header */
    bit<7> again_padding;
    bit<1> again;           /* this packet comes for its second pass (TNA only) */
    bit<7> port_padding;
    port_t port;            /* where it goes, where that is one port */
    bit<7> from_padding;
    port_t from;            /* where it came in */
    bit<16> receiver;       /* whose addresses to write; 0: as the replication engine says */
    bit<16> group;          /* the multicast group that it goes to, where it does */
    bit<16> reader;         /* 0, or the `reply` of a directed contribution: the worker's bit + 1 that gets words */
    bit<7> bare_padding;
    bit<1> bare;            /* a RESULT whose words went to another worker */
}

header ethernet_h {
    mac_t destination;
    mac_t source;
    bit<16> ether_type;
}

header tag_h {
    bit<16> vlan;
    bit<16> ether_type;
}

header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8> hardware_bytes;
    bit<8> protocol_bytes;
    bit<16> operation;
    mac_t sender_mac;
    ip_t sender_ip;
    mac_t target_mac;
    ip_t target_ip;
}

header ipv4_h {
    bit<4> version;
    bit<4> header_words;
    bit<8> service;
    bit<16> bytes;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> hops;
    bit<8> protocol;
    bit<16> checksum;
    ip_t source;
    ip_t destination;
}

header icmp_h {
    bit<8> message;
    bit<8> code;
    bit<16> checksum;
}

header udp_h {
    bit<16> source;
    bit<16> destination;
    bit<16> bytes;
    bit<16> checksum;
}

/* The header of switchagg/wire/header.py, field for field. */
header switchagg_h {
    bit<4> version;
    bit<4> op;
    bit<8> flags;           /* bit 0: words follow; 1: sent before; 2: one worker alone gets the words; 3, 4: CE, ECT */
    bit<16> job;
    bit<32> token;
    bit<32> seq;
    bit<16> slot;
    bit<16> reply;
}

#define AGG_WORD_FIELDS(pair, low, high) bit<32> w##low; bit<32> w##high;
header words_h {
    AGG_FOR_EACH_PAIR(AGG_WORD_FIELDS)
}

/* Bytes after a MAC header that no table reads: a Tofino's egress parser must read 65 bytes of every packet, its
   own metadata included. */
header rest_h {
    bit<128> bytes;
}

/* Fills a frame up to Ethernet's 60 bytes where the words that came with it do not leave with it. */
header padding_h {
    bit<16> zero;
}

struct headers_t {
    packet_out_h packet_out;
    packet_in_h packet_in;
    bridge_h bridge;
    ethernet_h ethernet;
    rest_h rest;
    tag_h tag;
    arp_h arp;
    ipv4_h ipv4;
    icmp_h icmp;
    udp_h udp;
    switchagg_h agg;
    words_h words;
    padding_h padding;
}

#endif
