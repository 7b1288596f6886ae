#include "switchagg/native/shared/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "switchagg/native/shared/ip_address.h"

namespace switchagg {
namespace {

constexpr uint32_t kArpBytes = 28, kIcmpBytes = 4;
constexpr uint8_t kIcmp = 1, kUdp = 17;

uint64_t pseudo_header(const uint8_t* ip, bool ipv4, uint8_t protocol, uint32_t segment) {
  const uint64_t addresses = ipv4 ? ones_sum(ip + 12, 8) : ones_sum(ip + 8, 32);
  return addresses + protocol + (segment >> 16) + (segment & 0xFFFF);
}

// The rest of a frame, taken one header at a time.
struct Cursor {
  const uint8_t* at;
  uint32_t left;
  bool ran_out = false;

  const uint8_t* take(uint32_t bytes) {
    if (bytes > left) {
      ran_out = true;
      return nullptr;
    }
    const uint8_t* header = at;
    at += bytes;
    left -= bytes;
    return header;
  }
};

void parse_arp(FrameView& view, Cursor& cursor, bool tagged) {
  const uint8_t* arp = cursor.take(kArpBytes);
  if (!arp) return;
  view.arp_sender = wire::load32(arp + 14);
  view.arp_target = wire::load32(arp + 24);
  if (!tagged && wire::load16(arp + 2) == kIpv4Type && wire::load16(arp + 6) == 1) view.traffic = Traffic::arp;
}

void parse_aggregation(FrameView& view, Cursor& cursor, uint32_t udp_bytes) {
  view.traffic = Traffic::aggregation;
  view.payload = cursor.at;
  if (udp_bytes < kUdpBytes + wire::kHeaderBytes) return;  // too short for a header, whatever follows
  view.payload_bytes = udp_bytes - kUdpBytes;
  if (view.payload_bytes > cursor.left) cursor.ran_out = true;
}

void parse_ipv4(FrameView& view, Cursor& cursor, bool tagged, uint16_t udp_port) {
  const uint8_t* ip = cursor.take(kIpv4Bytes);
  if (!ip) return;
  view.ip_source = wire::load32(ip + 12);
  view.ip_destination = wire::load32(ip + 16);
  view.ce = (ip[1] & kEcnMask) == kCe;
  const bool fragment = wire::load16(ip + 6) & 0x3FFF;
  if (tagged || ip[0] != 0x45 || fragment) return;
  if (ip[9] == kIcmp) {
    const uint8_t* icmp = cursor.take(kIcmpBytes);
    if (icmp && icmp[0] == 8 && icmp[1] == 0) view.traffic = Traffic::echo;
  } else if (ip[9] == kUdp) {
    const uint8_t* udp = cursor.take(kUdpBytes);
    if (!udp) return;
    view.udp_source = wire::load16(udp);
    if (wire::load16(udp + 2) == udp_port) parse_aggregation(view, cursor, wire::load16(udp + 4));
  }
}

}  // namespace

FrameView parse_frame(const uint8_t* data, uint32_t size, uint16_t udp_port) {
  FrameView view;
  Cursor cursor{data, size};
  if (const uint8_t* ethernet = cursor.take(kEthernetBytes)) {
    view.destination = load48(ethernet);
    view.source = load48(ethernet + 6);
    view.ether_type = wire::load16(ethernet + 12);
    uint16_t type = view.ether_type;
    const bool tagged = is_tag(type);
    if (tagged) {
      if (const uint8_t* tag = cursor.take(kTagBytes)) view.tag_type = wire::load16(tag + 2);
      type = view.tag_type;
      if (is_tag(type)) view.traffic = Traffic::tags;
    }
    if (type == kArpType) parse_arp(view, cursor, tagged);
    if (type == kIpv4Type) parse_ipv4(view, cursor, tagged, udp_port);
  }
  view.malformed = cursor.ran_out;
  return view;
}

uint64_t ones_sum(const uint8_t* data, uint32_t size, uint64_t sum) {
  // In the processor's byte order and four bytes at a time, which compilers turn into vectors: the sum is the same but for
  // the order of its bytes (RFC 1071, section 2).
  uint64_t native = 0;
  for (; size >= 4; data += 4, size -= 4) {
    uint32_t word;
    std::memcpy(&word, data, 4);
    native += word;
  }
  native = (native & 0xFFFFFFFF) + (native >> 32);
  while (native >> 16) native = (native & 0xFFFF) + (native >> 16);
  if constexpr (std::endian::native == std::endian::little) native = (native & 0xFF) << 8 | native >> 8;
  sum += native;
  if (size >= 2) {
    sum += wire::load16(data);
    data += 2;
    size -= 2;
  }
  return size ? sum + (uint64_t{*data} << 8) : sum;
}

uint16_t checksum_of(uint64_t sum) {
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

void write_udp_headers(uint8_t* at, const UdpAddress& from, const UdpAddress& to, uint32_t payload, uint8_t ecn) {
  store48(at, to.mac);
  store48(at + 6, from.mac);
  wire::store16(at + 12, kIpv4Type);
  write_ip_headers(at + kEthernetBytes, {from.ip, from.port}, {to.ip, to.port}, payload, ecn);
}

bool mark_ce(uint8_t* frame, uint32_t size) {
  uint8_t* const ip = frame + kEthernetBytes;
  if (size < kEthernetBytes + kIpv4Bytes || wire::load16(frame + 12) != kIpv4Type || ip[0] != 0x45 || !(ip[1] & kEcnMask)) return false;
  ip[1] |= kCe;
  wire::store16(ip + 10, 0);
  wire::store16(ip + 10, checksum_of(ones_sum(ip, kIpv4Bytes)));
  return true;
}

void write_ip_headers(uint8_t* ip, Endpoint from, Endpoint to, uint32_t payload, uint8_t ecn) {
  std::memset(ip, 0, kIpv4Bytes + kUdpBytes);
  ip[0] = 0x45;  // IPv4, five words of header
  ip[1] = ecn;
  wire::store16(ip + 2, static_cast<uint16_t>(kIpv4Bytes + kUdpBytes + payload));
  ip[6] = 0x40;  // do not fragment
  ip[8] = 64;    // time to live
  ip[9] = kUdp;
  wire::store32(ip + 12, from.ip);
  wire::store32(ip + 16, to.ip);
  wire::store16(ip + 10, checksum_of(ones_sum(ip, kIpv4Bytes)));
  uint8_t* const udp = ip + kIpv4Bytes;
  wire::store16(udp, from.port);
  wire::store16(udp + 2, to.port);
  wire::store16(udp + 4, static_cast<uint16_t>(kUdpBytes + payload));
}

void write_ipv6_headers(uint8_t* ip, Endpoint from, Endpoint to, uint32_t payload, uint8_t ecn) {
  const auto length = static_cast<uint16_t>(kUdpBytes + payload);
  std::memset(ip, 0, kIpv6Bytes + kUdpBytes);
  ip[0] = 0x60;
  ip[1] = static_cast<uint8_t>(ecn << 4);
  wire::store16(ip + 4, length);
  ip[6] = kUdp;
  ip[7] = 64;  // hop limit
  for (const auto& [at, end] : {std::pair(ip + 8, from), std::pair(ip + 24, to)}) {
    const in6_addr address = ipv6_of(end.ip);
    if (end.ip) std::memcpy(at, &address, sizeof address);
  }
  uint8_t* const udp = ip + kIpv6Bytes;
  wire::store16(udp, from.port);
  wire::store16(udp + 2, to.port);
  wire::store16(udp + 4, length);
  // The pseudo-header has the addresses, the length and the protocol; then the UDP header and the payload follow.
  const uint16_t checksum = checksum_of(ones_sum(ip + 8, 32 + uint32_t{length}, uint64_t{length} + kUdp));
  wire::store16(udp + 6, checksum ? checksum : 0xFFFF);
}

void complete_udp_checksum(uint8_t* headers, uint64_t payload_sum) {
  const uint8_t* const ip = headers + kEthernetBytes;
  uint8_t* const udp = headers + kEthernetBytes + kIpv4Bytes;
  const uint16_t checksum = checksum_of(pseudo_header(ip, true, kUdp, wire::load16(udp + 4)) + ones_sum(udp, kUdpBytes) + payload_sum);
  wire::store16(udp + 6, checksum ? checksum : 0xFFFF);  // 0 would mean that there is none
}

std::optional<DatagramView> parse_datagram(const uint8_t* data, uint32_t size) {
  if (size < kUdpHeadersBytes || wire::load16(data + 12) != kIpv4Type) return std::nullopt;
  const uint8_t* const ip = data + kEthernetBytes;
  const uint8_t* const udp = ip + kIpv4Bytes;
  const uint32_t total = wire::load16(ip + 2), segment = wire::load16(udp + 4);
  if (ip[0] != 0x45 || ip[9] != kUdp || wire::load16(ip + 6) & 0x3FFF) return std::nullopt;
  if (total > size - kEthernetBytes || total < kIpv4Bytes + kUdpBytes || segment < kUdpBytes || segment > total - kIpv4Bytes)
    return std::nullopt;
  if (checksum_of(ones_sum(ip, kIpv4Bytes)) != 0) return std::nullopt;
  if (const uint16_t checksum = wire::load16(udp + 6)) {
    const uint64_t pseudo = pseudo_header(ip, true, kUdp, segment);
    if (checksum_of(ones_sum(udp, segment, pseudo)) != 0 && checksum != static_cast<uint16_t>(~checksum_of(pseudo)))
      return std::nullopt;
  }
  return DatagramView{load48(data + 6), (ip[1] & kEcnMask) == kCe, {wire::load32(ip + 12), wire::load16(udp)},
                      {wire::load32(ip + 16), wire::load16(udp + 2)}, udp + kUdpBytes, segment - kUdpBytes};
}

void write_arp_request(uint8_t* frame, uint64_t mac, uint32_t ip, uint32_t target) {
  std::memset(frame, 0, kArpFrameBytes);
  store48(frame, 0xFFFFFFFFFFFF);
  store48(frame + 6, mac);
  wire::store16(frame + 12, kArpType);
  uint8_t* const arp = frame + kEthernetBytes;
  wire::store16(arp, 1);  // Ethernet
  wire::store16(arp + 2, kIpv4Type);
  arp[4] = 6;
  arp[5] = 4;
  wire::store16(arp + 6, 1);  // a request
  store48(arp + 8, mac);
  wire::store32(arp + 14, ip);
  wire::store32(arp + 24, target);
}

void answer_arp(uint8_t* frame, uint64_t mac) {
  uint8_t* const arp = frame + kEthernetBytes;
  std::memcpy(frame, frame + 6, 6);
  store48(frame + 6, mac);
  wire::store16(arp + 6, 2);
  const uint32_t ours = wire::load32(arp + 24);
  std::memcpy(arp + 18, arp + 8, 10);  // the sender becomes the target
  store48(arp + 8, mac);
  wire::store32(arp + 14, ours);
}

void answer_echo(uint8_t* frame) {
  const uint64_t mac = load48(frame);
  std::memcpy(frame, frame + 6, 6);
  store48(frame + 6, mac);
  uint8_t* const ip = frame + kEthernetBytes;
  const uint32_t ours = wire::load32(ip + 16);
  std::memcpy(ip + 16, ip + 12, 4);
  wire::store32(ip + 12, ours);
  ip[8] = 64;
  wire::store16(ip + 10, 0);
  wire::store16(ip + 10, checksum_of(ones_sum(ip, kIpv4Bytes)));
  uint8_t* const icmp = ip + kIpv4Bytes;
  icmp[0] = 0;
  // Type 8 becomes 0, so the ones' complement checksum rises by 0x0800, with end-around carry.
  const uint32_t risen = uint32_t{wire::load16(icmp + 2)} + 0x0800;
  wire::store16(icmp + 2, static_cast<uint16_t>(risen + (risen >= 0xFFFF)));
}

namespace {

constexpr uint32_t kTcpBytes = 20;
constexpr uint8_t kTcp = 6;
constexpr uint8_t kTcpFin = 0x01, kTcpPush = 0x08, kTcpReduced = 0x80;  // the last two stand in the last and in the first segment only

// The offset of the network header; 0 if there is no IP header.
uint32_t network_at(const uint8_t* frame, uint32_t size, uint16_t& type) {
  uint32_t at = kEthernetBytes;
  if (size < at) return 0;
  type = wire::load16(frame + 12);
  while (is_tag(type) && size >= at + kTagBytes) {
    type = wire::load16(frame + at + 2);
    at += kTagBytes;
  }
  const uint32_t header = type == kIpv4Type ? kIpv4Bytes : type == kIpv6Type ? kIpv6Bytes : 0;
  return header != 0 && size >= at + header ? at : 0;
}

}  // namespace

bool complete_checksum(uint8_t* frame, uint32_t size, uint32_t start, uint32_t offset) {
  if (start + offset + 2 > size) return false;
  const uint16_t checksum = checksum_of(ones_sum(frame + start, size - start));
  // 0 would mean that a UDP packet has no checksum; all ones is the same number.
  wire::store16(frame + start + offset, checksum ? checksum : 0xFFFF);
  return true;
}

bool split_super_frame(const OffloadInfo& about, const uint8_t* frame, uint32_t size, std::vector<uint8_t>& memory,
                       std::vector<uint32_t>& sizes) {
  const uint8_t kind = about.gso_type & static_cast<uint8_t>(~OffloadInfo::kCongestion);
  const bool tcp = kind == OffloadInfo::kTcp4 || kind == OffloadInfo::kTcp6;
  if ((!tcp && kind != OffloadInfo::kUdp) || about.gso_size == 0) return false;
  uint16_t type = 0;
  const uint32_t network = network_at(frame, size, type);
  const uint32_t transport = about.checksum_start;
  const bool ipv4 = type == kIpv4Type;
  if (network == 0 || transport < network + (ipv4 ? kIpv4Bytes : kIpv6Bytes) ||
      transport + (tcp ? kTcpBytes : kUdpBytes) > size)
    return false;
  const uint32_t headers = transport + (tcp ? 4u * (frame[transport + 12] >> 4) : kUdpBytes);
  if (headers < transport + (tcp ? kTcpBytes : kUdpBytes) || headers >= size) return false;

  const uint32_t payload = size - headers;
  for (uint32_t at = 0, number = 0; at < payload; at += about.gso_size, ++number) {
    const uint32_t part = std::min<uint32_t>(about.gso_size, payload - at);
    const bool last = at + part == payload;
    const size_t begin = memory.size();
    memory.resize(begin + headers + part);
    uint8_t* const made = memory.data() + begin;
    std::memcpy(made, frame, headers);
    std::memcpy(made + headers, frame + headers + at, part);

    uint8_t* const ip = made + network;
    const uint32_t segment = headers - transport + part;
    if (ipv4) {
      wire::store16(ip + 2, static_cast<uint16_t>(transport - network + segment));
      wire::store16(ip + 4, static_cast<uint16_t>(wire::load16(ip + 4) + number));
      wire::store16(ip + 10, 0);
      wire::store16(ip + 10, checksum_of(ones_sum(ip, transport - network)));
    } else {
      wire::store16(ip + 4, static_cast<uint16_t>(transport - network - kIpv6Bytes + segment));
    }
    uint8_t* const head = made + transport;
    if (tcp) {
      wire::store32(head + 4, wire::load32(head + 4) + at);
      if (!last) head[13] &= static_cast<uint8_t>(~(kTcpFin | kTcpPush));
      if (number > 0) head[13] &= static_cast<uint8_t>(~kTcpReduced);
    } else {
      wire::store16(head + 4, static_cast<uint16_t>(segment));
    }
    const uint32_t field = tcp ? 16 : 6;
    wire::store16(head + field, 0);
    const uint64_t sum = pseudo_header(ip, ipv4, tcp ? kTcp : kUdp, segment);
    const uint16_t checksum = checksum_of(ones_sum(head, segment, sum));
    wire::store16(head + field, tcp || checksum ? checksum : 0xFFFF);
    sizes.push_back(headers + part);
  }
  return true;
}

}  // namespace switchagg
