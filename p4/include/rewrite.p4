/* The egress of both programs: addresses and headers of what the switch itself sends.

   Ingress bridges each packet's next hop (constants.p4). Forwarded frames stay unchanged. Answers get their addresses
   from one table with an entry for each worker and each parent. Its key, `receiver`, comes from the replication engine
   for a copy, and from ingress for a single packet. */

#ifndef SWITCHAGG_REWRITE_P4
#define SWITCHAGG_REWRITE_P4

#include "metadata.p4"

control Rewrite(inout headers_t hdr, in bit<16> receiver) {
    /* Ours is the address that the packet was sent to. */
    action address(mac_t mac, ip_t ip, bit<16> udp_port) {
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = ip;
        hdr.ipv4.hops = 64;
        hdr.udp.source = AGG_UDP_PORT;
        hdr.udp.destination = udp_port;
        hdr.udp.checksum = 0;
    }

    /* offset: from the slot number that the packet came with to the receiver's. */
    action to_worker(mac_t mac, ip_t ip, bit<16> udp_port, bit<32> token, bit<16> offset) {
        address(mac, ip, udp_port);
        hdr.agg.op = OP_RESULT;
        hdr.agg.flags = hdr.agg.flags & ECN_FLAGS;
        hdr.agg.token = token;
        hdr.agg.slot = hdr.agg.slot + offset;
    }

    action to_parent(mac_t mac, ip_t ip, bit<16> udp_port, bit<32> token, bit<16> offset) {
        address(mac, ip, udp_port);
        hdr.agg.flags = hdr.agg.flags & (ECN_FLAGS | 2);
        hdr.agg.token = token;
        hdr.agg.slot = hdr.agg.slot + offset;
    }

    action arp_reply(mac_t mac) {
        ip_t ours = hdr.arp.target_ip;
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = mac;
        hdr.arp.operation = 2;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_ip = ours;
    }

    action echo_reply(bit<16> rise) {
        mac_t mac = hdr.ethernet.source;
        ip_t ip = hdr.ipv4.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = ip;
        hdr.ipv4.hops = 64;
        hdr.icmp.message = 0;
        hdr.icmp.checksum = hdr.icmp.checksum + rise;
    }

    /* Type 8 becomes 0, so the ones' complement sum falls by 0x0800 and its complement rises by as much; from 0xF7FF
       on it carries. */
    table echo {
        key = {
            hdr.icmp.checksum: ternary;
        }
        actions = {
            echo_reply;
        }
        const default_action = echo_reply(0x0800);
        const entries = {
            0xF7FF &&& 0xFFFF: echo_reply(0x0801);
            0xF800 &&& 0xF800: echo_reply(0x0801);
        }
        CONST_SIZE(2)
    }

    /* Happens while a job is added or removed. The packet still has its sender's token, so it is dropped. */
    action nobody() {
        hdr.bridge.next_hop = NEXT_HOP_NOBODY;
    }

    /* A leaf's contribution names the reader as the packet did that made the slot full. */
    action raise_directed() {
        hdr.agg.flags = hdr.agg.flags | 4;
        hdr.agg.reply = hdr.bridge.reader;
    }

    action mark_bare() {
        hdr.agg.flags = hdr.agg.flags | 4;
    }

    action size_bare() {
        hdr.ipv4.bytes = IPV4_BYTES_BARE;
        hdr.udp.bytes = UDP_BYTES_BARE;
    }

    action size_full() {
        hdr.ipv4.bytes = IPV4_BYTES_FULL;
        hdr.udp.bytes = UDP_BYTES_FULL;
        hdr.agg.flags = hdr.agg.flags | 1;
    }

    table arps {
        key = {
            hdr.arp.target_ip: exact;
        }
        actions = {
            arp_reply;
            @defaultonly nobody;
        }
        const default_action = nobody();
        size = 16;
    }

    table receivers {
        key = {
            receiver: exact;
        }
        actions = {
            to_worker;
            to_parent;
            @defaultonly nobody;
        }
        const default_action = nobody();
        size = AGG_RECEIVERS;
    }

    apply {
        if (hdr.bridge.next_hop == NEXT_HOP_ECHO) {
            echo.apply();
        } else if (hdr.bridge.next_hop == NEXT_HOP_ARP) {
            arps.apply();
        } else {
            receivers.apply();
            if (hdr.bridge.bare == 1) {
                mark_bare();
            } else if (hdr.bridge.next_hop == NEXT_HOP_RAISE && hdr.bridge.reader != 0) {
                raise_directed();
            }
            if (hdr.bridge.words == 1) {
                size_full();
            } else {
                size_bare();
            }
        }
    }
}

#endif
