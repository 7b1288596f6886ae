// Ethernet frames: what the switch looks at in one, and the headers that it writes. No I/O.
//
// The parser takes in what p4/include/frame_states.p4 does: Ethernet, one VLAN tag, ARP, IPv4 without options or fragments,
// ICMP, UDP. What ends before its headers do is malformed.
#pragma once

#include <cstdint>

#include "switchagg/native/shared/port.h"

namespace switchagg {

inline constexpr uint32_t kEthernetBytes = 14, kTagBytes = 4, kIpv4Bytes = 20, kUdpBytes = 8;
inline constexpr uint32_t kUdpHeadersBytes = kEthernetBytes + kIpv4Bytes + kUdpBytes;
inline constexpr uint32_t kShortestFrame = 60;  // without the check sequence
inline constexpr uint16_t kIpv4Type = 0x0800, kArpType = 0x0806, kIpv6Type = 0x86DD;

constexpr bool is_tag(uint16_t ether_type) { return ether_type == 0x8100 || ether_type == 0x88A8; }

inline uint64_t load48(const uint8_t* at) { return uint64_t{wire::load16(at)} << 32 | wire::load32(at + 2); }
inline void store48(uint8_t* at, uint64_t value) {
  wire::store16(at, static_cast<uint16_t>(value >> 32));
  wire::store32(at + 2, static_cast<uint32_t>(value));
}

// What a frame is to the switch; numbered as in p4/include/constants.p4.
enum class Traffic : uint8_t { other = 0, arp = 1, echo = 2, aggregation = 3, tags = 4 };

struct FrameView {  // fields of headers that are not there are 0
  bool malformed = false;
  Traffic traffic = Traffic::other;
  uint64_t destination = 0, source = 0;
  uint16_t ether_type = 0, tag_type = 0;
  uint32_t arp_sender = 0, arp_target = 0;
  uint32_t ip_source = 0, ip_destination = 0;
  uint16_t udp_source = 0;
  const uint8_t* payload = nullptr;  // of UDP, where the traffic is aggregation
  uint32_t payload_bytes = 0;
};

FrameView parse_frame(const uint8_t* data, uint32_t size, uint16_t udp_port);

// The ones' complement sum of an even number of bytes and a last odd one, to be folded by checksum_of().
uint64_t ones_sum(const uint8_t* data, uint32_t size, uint64_t sum = 0);
uint16_t checksum_of(uint64_t sum);

struct UdpAddress {
  uint64_t mac = 0;
  uint32_t ip = 0;
  uint16_t port = 0;
};
// Writes kUdpHeadersBytes in front of a payload of so many bytes; UDP checksum 0.
void write_udp_headers(uint8_t* at, const UdpAddress& from, const UdpAddress& to, uint32_t payload);

// Turn a request into its answer, in place.
void answer_arp(uint8_t* frame, uint64_t mac);
void answer_echo(uint8_t* frame);

}  // namespace switchagg
