/* Everything that is not aggregation: the switch as a rack's switch.

       own_source --> drop: it claims to come from the switch itself
         `-- local -----> ARP and echo requests for the switch: egress answers
               |--------> packets of the protocol for the switch: admission
               `-- stations --> everything else by destination MAC: one port, or flooded by a multicast group;
                                never back where it came from, which egress sees to

   Nothing is learned here; whoever controls the switch writes the stations. */

#ifndef SWITCHAGG_ETHERNET_P4
#define SWITCHAGG_ETHERNET_P4

#include "metadata.p4"
#include "admission.p4"

control Frames(inout headers_t hdr, inout metadata_t meta, in port_t ingress_port) {
    Admission() admission;
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
            hdr.ethernet.source: ternary @name("ethernet_source");
            hdr.ethernet.ether_type: ternary @name("ethernet_type");
            hdr.tag.ether_type: ternary @name("tag_type");
            hdr.arp.sender_ip: ternary;
            hdr.ipv4.source: ternary @name("ipv4_source");
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
        hdr.bridge.next_hop = NEXT_HOP_ARP;
        hdr.bridge.port = ingress_port;
        meta.way = WAY_PORT;
    }

    action answer_echo() {
        COUNT(local_packets)
        hdr.bridge.next_hop = NEXT_HOP_ECHO;
        hdr.bridge.port = ingress_port;
        meta.way = WAY_PORT;
    }

    action admit() {
        COUNT(local_packets)
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
            hdr.ethernet.destination: ternary @name("ethernet_destination");
            meta.traffic: ternary;
            hdr.arp.target_ip: ternary;
            hdr.ipv4.destination: ternary @name("ipv4_destination");
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
        hdr.bridge.next_hop = NEXT_HOP_STATION;
        hdr.bridge.port = port;
        meta.way = WAY_PORT;
    }

    action flood(bit<16> group) {
        COUNT(station_packets)
        hdr.bridge.next_hop = NEXT_HOP_STATION;
        hdr.bridge.group = group;
        meta.way = WAY_GROUP;
    }

    action drop_unknown() {
        COUNT(station_packets)
    }

    table stations {
        key = {
            hdr.ethernet.destination: exact @name("ethernet_destination");
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

    /* On a Tofino all of this is one stage: tables that only decide which table is next share a stage. */
    apply {
        if (!own_source.apply().hit) {
            switch (local.apply().action_run) {
                admit: {
                    admission.apply(hdr, meta, ingress_port);
                }
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
