/* States of a parser, from Ethernet to what the switch looks into; to be included in a parser's body.

       parse_frame: ethernet -- arp
                       |------- ipv4 -- icmp
                       |          `---- udp -- protocol header -- words
                       `------- tag -- arp or ipv4, for their sources

   They use packet, hdr and meta, and without words the egress's intrinsic metadata. PARSE_WORDS says whether to extract words and tags: a Tofino's egress has no room
   for words and leaves them in the payload, and sees no frame with a tag from inside. What the switch does not look
   into stays payload. */

    state parse_frame {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_ARP: parse_arp;
            ETHERTYPE_IPV4: parse_ipv4;
#if PARSE_WORDS
            ETHERTYPE_VLAN: parse_tag;
            ETHERTYPE_SERVICE_VLAN: parse_tag;
            default: accept;
#else
            default: parse_rest;
#endif
        }
    }

#if !PARSE_WORDS
    state parse_rest {
        packet.extract(hdr.rest);
        transition accept;
    }
#endif

#if PARSE_WORDS
    /* Nothing with a tag is for this switch. But stations take VLAN 0 for no tag, and so it must not hide who
       pretends to be the sender. */
    state parse_tag {
        packet.extract(hdr.tag);
        transition select(hdr.tag.ether_type) {
            ETHERTYPE_ARP: parse_tagged_arp;
            ETHERTYPE_IPV4: parse_tagged_ipv4;
            ETHERTYPE_VLAN: parse_more_tags;
            ETHERTYPE_SERVICE_VLAN: parse_more_tags;
            default: accept;
        }
    }

    state parse_tagged_arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    state parse_tagged_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }

    state parse_more_tags {
        meta.traffic = TRAFFIC_TAGS;
        transition accept;
    }
#endif

    state parse_arp {
        packet.extract(hdr.arp);
        transition select(hdr.arp.protocol_type, hdr.arp.operation) {
            (ETHERTYPE_IPV4, 1): parse_arp_request;
            default: accept;
        }
    }

    state parse_arp_request {
        meta.traffic = TRAFFIC_ARP;
        transition accept;
    }

    /* Options and fragments are nothing for this switch: such a packet passes as any other frame. */
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.header_words, hdr.ipv4.flags, hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, PROTOCOL_ICMP): parse_icmp;
            (4, 5, 0 &&& 1, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_icmp {
        packet.extract(hdr.icmp);
        transition select(hdr.icmp.message, hdr.icmp.code) {
            (8, 0): parse_echo;
            default: accept;
        }
    }

    state parse_echo {
        meta.traffic = TRAFFIC_ECHO;
        transition accept;
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.destination, hdr.udp.bytes) {
            (AGG_UDP_PORT, UDP_BYTES_BARE): parse_bare;
            (AGG_UDP_PORT, UDP_BYTES_FULL): parse_full;
            (AGG_UDP_PORT, 0 &&& 0xFFF0): parse_truncated;          /* 0..15 */
            (AGG_UDP_PORT, 0x10 &&& 0xFFF8): parse_truncated;       /* 16..23 */
            (AGG_UDP_PORT, 0x58 &&& 0xFFFB): parse_other_words;     /* 88, 92: 16 and 17 words */
            (AGG_UDP_PORT, 0x60 &&& 0xFFE3): parse_other_words;     /* 96..124 */
            (AGG_UDP_PORT, 0x80 &&& 0xFF83): parse_other_words;     /* 128..252, and so on */
            (AGG_UDP_PORT, 0x100 &&& 0xFF03): parse_other_words;
            (AGG_UDP_PORT, 0x200 &&& 0xFE03): parse_other_words;
            (AGG_UDP_PORT, 0x400 &&& 0xFC03): parse_other_words;
            (AGG_UDP_PORT, 0x800 &&& 0xF803): parse_other_words;
            (AGG_UDP_PORT, 0x1000 &&& 0xF003): parse_other_words;
            (AGG_UDP_PORT, 0x2000 &&& 0xE003): parse_other_words;
            (AGG_UDP_PORT, 0x4000 &&& 0xC003): parse_other_words;
            (AGG_UDP_PORT, 0x8000 &&& 0x8003): parse_other_words;
            (AGG_UDP_PORT, _): parse_ragged;
            default: accept;
        }
    }

    state parse_truncated {
        meta.traffic = TRAFFIC_AGGREGATION;
        meta.form = FORM_TRUNCATED;
        transition accept;
    }

    state parse_bare {
        packet.extract(hdr.agg);
        meta.traffic = TRAFFIC_AGGREGATION;
        transition select(hdr.agg.flags) {
            0 &&& 1: parse_skip;
            default: unfit;
        }
    }

    state parse_skip {
        meta.form = FORM_SKIP;
        transition accept;
    }

    state parse_full {
        packet.extract(hdr.agg);
        meta.traffic = TRAFFIC_AGGREGATION;
        transition select(hdr.agg.flags) {
            1 &&& 1: parse_words;
            default: unfit;
        }
    }

    state parse_words {
        meta.form = FORM_WORDS;
#if PARSE_WORDS
        packet.extract(hdr.words);
        transition accept;
#else
        /* Copies for others than the reader, whose numbers end with their bit + 1, leave without words: what a
           parser passes over is not sent. A packet that is no copy has replication id 0. */
        transition select(hdr.bridge.reader, intrinsic.egress_rid) {
            (0, _): accept;
            (_, 0): accept;
            (1, 1 &&& 0x3F): accept;
            (2, 2 &&& 0x3F): accept;
            (3, 3 &&& 0x3F): accept;
            (4, 4 &&& 0x3F): accept;
            (5, 5 &&& 0x3F): accept;
            (6, 6 &&& 0x3F): accept;
            (7, 7 &&& 0x3F): accept;
            (8, 8 &&& 0x3F): accept;
            (9, 9 &&& 0x3F): accept;
            (10, 10 &&& 0x3F): accept;
            (11, 11 &&& 0x3F): accept;
            (12, 12 &&& 0x3F): accept;
            (13, 13 &&& 0x3F): accept;
            (14, 14 &&& 0x3F): accept;
            (15, 15 &&& 0x3F): accept;
            (16, 16 &&& 0x3F): accept;
            (17, 17 &&& 0x3F): accept;
            (18, 18 &&& 0x3F): accept;
            (19, 19 &&& 0x3F): accept;
            (20, 20 &&& 0x3F): accept;
            (21, 21 &&& 0x3F): accept;
            (22, 22 &&& 0x3F): accept;
            (23, 23 &&& 0x3F): accept;
            (24, 24 &&& 0x3F): accept;
            (25, 25 &&& 0x3F): accept;
            (26, 26 &&& 0x3F): accept;
            (27, 27 &&& 0x3F): accept;
            (28, 28 &&& 0x3F): accept;
            (29, 29 &&& 0x3F): accept;
            (30, 30 &&& 0x3F): accept;
            (31, 31 &&& 0x3F): accept;
            (32, 32 &&& 0x3F): accept;
            default: leave_words_out;
        }
#endif
    }

#if !PARSE_WORDS
    state leave_words_out {
        packet.advance(32 * AGG_WORDS);
        meta.bare = 1;
        transition accept;
    }
#endif

    state parse_other_words {
        packet.extract(hdr.agg);
        meta.traffic = TRAFFIC_AGGREGATION;
        transition select(hdr.agg.flags) {
            1 &&& 1: other_words;
            default: unfit;
        }
    }

    state other_words {
        meta.form = FORM_OTHER_WORDS;
        transition accept;
    }

    state parse_ragged {
        packet.extract(hdr.agg);
        meta.traffic = TRAFFIC_AGGREGATION;
        transition unfit;
    }

    state unfit {
        meta.form = FORM_RAGGED;
        transition accept;
    }
