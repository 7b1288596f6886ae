/* Everything that is not aggregation: the switch as a rack's switch.

       own_source   drops what claims to come from the switch itself
       local        says what is for the switch: ARP requests, echo requests, packets of the protocol
       stations     everything else by destination MAC: to one port, or flooded by a multicast group

   Nothing is learned here; whoever controls the switch writes the stations. */

#ifndef SWITCHAGG_FRAMES_P4
#define SWITCHAGG_FRAMES_P4

#include "metadata.p4"

/* Is it for this switch, and may it have come from outside at all? `aggregate` tells that it is for admission. */
control Local(inout headers_t hdr, inout metadata_t meta, in port_t ingress_port, out bit<1> aggregate) {
    DIRECT_COUNTER(own_source_packets)
    DIRECT_COUNTER(local_packets)

    action drop_own_source() {
        COUNT(own_source_packets)
    }

    action accept_source() {
        COUNT(own_source_packets)
    }

    table own_source {
        key = {
            hdr.ethernet.source: ternary;
            hdr.arp.isValid(): ternary;
            hdr.arp.sender_ip: ternary;
            hdr.ipv4.isValid(): ternary;
            hdr.ipv4.source: ternary;
        }
        actions = {
            drop_own_source;
            @defaultonly accept_source;
        }
        const default_action = accept_source();
        counters = own_source_packets;
        size = 16;
    }

    DIRECT_COUNTER(station_packets)

    /* Egress writes the answer; it leaves where the request came in. */
    action answer_arp() {
        COUNT(local_packets)
        hdr.bridge.errand = ERRAND_ARP;
        hdr.bridge.port = ingress_port;
        meta.way = WAY_PORT;
    }

    action answer_echo() {
        COUNT(local_packets)
        hdr.bridge.errand = ERRAND_ECHO;
        hdr.bridge.port = ingress_port;
        meta.way = WAY_PORT;
    }

    action admit() {
        COUNT(local_packets)
        aggregate = 1;
    }

    /* For the switch, but nothing that it serves. */
    action drop_local() {
        COUNT(local_packets)
    }

    action pass() {
        COUNT(local_packets)
    }

    table local {
        key = {
            hdr.ethernet.destination: ternary;
            meta.traffic: ternary;
            hdr.arp.target_ip: ternary;
            hdr.ipv4.destination: ternary;
        }
        actions = {
            answer_arp;
            answer_echo;
            admit;
            drop_local;
            @defaultonly pass;
        }
        const default_action = pass();
        counters = local_packets;
        size = 64;
    }

    action forward(port_t port) {
        COUNT(station_packets)
        hdr.bridge.port = port;
        meta.way = WAY_PORT;
    }

    action flood(bit<16> group) {
        COUNT(station_packets)
        hdr.bridge.errand = ERRAND_FLOOD;
        hdr.bridge.port = ingress_port;
        hdr.bridge.group = group;
        meta.way = WAY_GROUP;
    }

    action drop_unknown() {
        COUNT(station_packets)
    }

    table stations {
        key = {
            hdr.ethernet.destination: exact;
        }
        actions = {
            forward;
            flood;
            drop_unknown;
        }
        default_action = drop_unknown();
        counters = station_packets;
        size = AGG_STATIONS;
    }

    apply {
        aggregate = 0;
        if (!own_source.apply().hit) {
            switch (local.apply().action_run) {
                pass: {
                    stations.apply();
                }
                default: {
                }
            }
        }
    }
}

#endif
