#include "switchagg/native/switch/super_frame.h"

#include <algorithm>
#include <cstring>

#include "switchagg/native/switch/frame.h"

namespace switchagg {
namespace {

constexpr uint8_t kTcp = 6, kUdp = 17;
constexpr uint8_t kTcpFin = 0x01, kTcpPush = 0x08, kTcpReduced = 0x80;  // the last two are the last's and the first's

// Where the network header is; 0 where there is none that we know.
uint32_t network_at(const uint8_t* frame, uint32_t size, uint16_t& type) {
  uint32_t at = kEthernetBytes;
  if (size < at) return 0;
  type = wire::load16(frame + 12);
  while (is_tag(type) && size >= at + kTagBytes) {
    type = wire::load16(frame + at + 2);
    at += kTagBytes;
  }
  const uint32_t header = type == kIpv4Type ? kIpv4Bytes : type == kIpv6Type ? 40 : 0;
  return header != 0 && size >= at + header ? at : 0;
}

uint64_t pseudo_header(const uint8_t* ip, bool ipv4, uint8_t protocol, uint32_t segment) {
  const uint64_t addresses = ipv4 ? ones_sum(ip + 12, 8) : ones_sum(ip + 8, 32);
  return addresses + protocol + (segment >> 16) + (segment & 0xFFFF);
}

}  // namespace

bool complete_checksum(uint8_t* frame, uint32_t size, uint32_t start, uint32_t offset) {
  if (start + offset + 2 > size) return false;
  const uint16_t checksum = checksum_of(ones_sum(frame + start, size - start));
  // 0 would mean that a UDP packet has no checksum; all ones is the same number.
  wire::store16(frame + start + offset, checksum ? checksum : 0xFFFF);
  return true;
}

bool split_super_frame(const FrameNote& about, const uint8_t* frame, uint32_t size, std::vector<uint8_t>& memory,
                       std::vector<uint32_t>& sizes) {
  const uint8_t kind = about.gso_type & static_cast<uint8_t>(~FrameNote::kCongestion);
  const bool tcp = kind == FrameNote::kTcp4 || kind == FrameNote::kTcp6;
  if ((!tcp && kind != FrameNote::kUdp) || about.gso_size == 0) return false;
  uint16_t type = 0;
  const uint32_t network = network_at(frame, size, type);
  const uint32_t transport = about.checksum_start;
  if (network == 0 || transport <= network || transport + (tcp ? 20u : kUdpBytes) > size) return false;
  const bool ipv4 = type == kIpv4Type;
  const uint32_t headers = transport + (tcp ? 4u * (frame[transport + 12] >> 4) : kUdpBytes);
  if (headers >= size) return false;

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
      wire::store16(ip + 4, static_cast<uint16_t>(transport - network - 40 + segment));
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
