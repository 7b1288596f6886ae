// Ethernet frames: parsing, headers of answers, and the offloads of virtual links. No I/O.
//
// parse_frame() accepts the same as p4/include/frame_states.p4: Ethernet, one VLAN tag, ARP, IPv4 without options or
// fragments, ICMP, UDP. A frame that ends within a header is malformed. parse_datagram() is what a host's stack does with a
// UDP datagram: it checks lengths and checksums too.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "switchagg/native/shared/port.h"

namespace switchagg {

inline constexpr uint32_t kEthernetBytes = 14, kTagBytes = 4, kIpv4Bytes = 20, kIpv6Bytes = 40, kUdpBytes = 8;
inline constexpr uint32_t kUdpHeadersBytes = kEthernetBytes + kIpv4Bytes + kUdpBytes;
inline constexpr uint32_t kShortestFrame = 60;  // without the check sequence
inline constexpr uint16_t kIpv4Type = 0x0800, kArpType = 0x0806, kIpv6Type = 0x86DD;

constexpr bool is_tag(uint16_t ether_type) { return ether_type == 0x8100 || ether_type == 0x88A8; }

inline uint64_t load48(const uint8_t* at) { return uint64_t{wire::load16(at)} << 32 | wire::load32(at + 2); }
inline void store48(uint8_t* at, uint64_t value) {
  wire::store16(at, static_cast<uint16_t>(value >> 32));
  wire::store32(at + 2, static_cast<uint32_t>(value));
}

// Kinds of traffic, numbered as in p4/include/constants.p4.
enum class Traffic : uint8_t { other = 0, arp = 1, echo = 2, aggregation = 3, tags = 4 };

struct FrameView {  // fields of headers that are not there are 0
  bool malformed = false;
  Traffic traffic = Traffic::other;
  uint64_t destination = 0, source = 0;
  uint16_t ether_type = 0, tag_type = 0;
  uint32_t arp_sender = 0, arp_target = 0;
  uint32_t ip_source = 0, ip_destination = 0;
  bool ce = false;  // of IP's ECN field
  uint16_t udp_source = 0;
  const uint8_t* payload = nullptr;  // of UDP, where the traffic is aggregation
  uint32_t payload_bytes = 0;
};

FrameView parse_frame(const uint8_t* data, uint32_t size, uint16_t udp_port);

// A UDP datagram as a host receives it: untagged, IPv4 without options, no fragment, of the lengths that its headers say, with
// right checksums. A UDP checksum may be missing (0), or be left for a network card to complete, as on virtual links.
struct DatagramView {
  uint64_t source_mac;
  bool ce;  // of IP's ECN field
  Endpoint source, destination;
  const uint8_t* payload;
  uint32_t payload_bytes;
};
std::optional<DatagramView> parse_datagram(const uint8_t* data, uint32_t size);

// The ones' complement sum of big-endian words of 16 bits; checksum_of() folds it.
uint64_t ones_sum(const uint8_t* data, uint32_t size, uint64_t sum = 0);
uint16_t checksum_of(uint64_t sum);

struct UdpAddress {
  uint64_t mac = 0;
  uint32_t ip = 0;
  uint16_t port = 0;
};
// Writes the headers of a UDP datagram, with UDP checksum 0: kUdpHeadersBytes with Ethernet, or only IPv4 and UDP. `ecn`: IP's field.
void write_ip_headers(uint8_t* ip, Endpoint from, Endpoint to, uint32_t payload, uint8_t ecn);
// IPv6 and UDP before a payload that lies behind them, with UDP's checksum, which IPv6 demands. An `ip` of 0 is ::.
void write_ipv6_headers(uint8_t* ip, Endpoint from, Endpoint to, uint32_t payload, uint8_t ecn);
void write_udp_headers(uint8_t* at, const UdpAddress& from, const UdpAddress& to, uint32_t payload, uint8_t ecn = 0);
// Sets CE in an untagged frame of IPv4 that is ECT, as a queue does; false for other frames.
bool mark_ce(uint8_t* frame, uint32_t size);
// Fills in the UDP checksum of headers that write_udp_headers() wrote; `payload_sum` is ones_sum() of the payload.
void complete_udp_checksum(uint8_t* headers, uint64_t payload_sum);

// An ARP request for `target`, of kArpFrameBytes.
inline constexpr uint32_t kArpFrameBytes = kShortestFrame;
void write_arp_request(uint8_t* frame, uint64_t mac, uint32_t ip, uint32_t target);

// Turn a request into its answer in place.
void answer_arp(uint8_t* frame, uint64_t mac);
void answer_echo(uint8_t* frame);

// Offload information that the kernel writes before a frame (PACKET_VNET_HDR): virtio_net_hdr of linux/virtio_net.h, which
// C++ cannot include everywhere. A frame that a process of this host sent over a virtual link may lack its checksum, or be
// a super-frame of up to 64 KB, because a network card would have completed or segmented it (TSO, UDP_SEGMENT).
struct OffloadInfo {
  static constexpr uint8_t kNeedsChecksum = 1;              // in flags
  static constexpr uint8_t kTcp4 = 1, kTcp6 = 4, kUdp = 5;  // in gso_type; 0: no super-frame
  static constexpr uint8_t kCongestion = 0x80;              // beside one of these
  uint8_t flags, gso_type;
  uint16_t header_bytes, gso_size, checksum_start, checksum_offset;
};
static_assert(sizeof(OffloadInfo) == 10);

// Completes the checksum of the bytes from `start` on, at `start` + `offset`; false if that is outside the frame.
bool complete_checksum(uint8_t* frame, uint32_t size, uint32_t start, uint32_t offset);

// Splits a super-frame into frames and appends them to `memory`, and their sizes to `sizes`. False, without appending, for
// kinds that it does not know, such as IP fragments.
bool split_super_frame(const OffloadInfo& about, const uint8_t* frame, uint32_t size, std::vector<uint8_t>& memory,
                       std::vector<uint32_t>& sizes);

}  // namespace switchagg
