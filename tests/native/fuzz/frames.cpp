// Ethernet frames as interfaces give them, with what the kernel says of their checksums and segments.
#include <algorithm>
#include <vector>

#include "switchagg/native/shared/frame.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace switchagg;

void run(fuzz::Input& input) {
  const uint8_t kind = input.u8();
  const uint32_t size = input.below(kind & 0x80 ? 1600 : 128);
  const fuzz::Exact frame(size);
  std::memset(frame.get(), 0, size);
  uint8_t start[kUdpHeadersBytes + wire::kHeaderBytes] = {};
  write_udp_headers(start, {0x020000000001, 0x0A000001, 1000}, {0x020000000002, 0x0A000002, 48879}, size > 42 ? size - 42 : 0);
  uint32_t at = 12;
  if (kind & 1) {
    wire::store16(start + at, kind & 2 ? 0x8100 : 0x88A8);
    at += 4;
    std::memmove(start + at, start + 12, sizeof start - at);
  }
  if (kind & 4) wire::store16(start + at, kArpType);
  if (kind & 8) wire::store16(start + at, kIpv6Type);
  if (kind & 16) start[at + 2 + 9] = 1;                                  // ICMP
  if (kind & 32) start[at + 2 + 9] = 6;                                  // TCP
  std::memcpy(frame.get(), start, std::min<size_t>(size, sizeof start));
  for (uint8_t changes = input.u8() % 8; changes > 0 && size > 0; --changes) frame.get()[input.below(size)] = input.u8();

  const FrameView view = parse_frame(frame.get(), size, 48879);
  if (!view.malformed && view.traffic == Traffic::aggregation && view.payload_bytes > 0) {
    fuzz::check(view.payload >= frame.get() && view.payload + view.payload_bytes <= frame.get() + size, "a payload outside its frame");
    fuzz::read_all(view.payload, view.payload_bytes);
  }
  // Checksums against RFC 1071 word by word; a datagram that is taken lies in its frame.
  uint64_t sum = 0;
  for (uint32_t i = 0; i < size; ++i) sum += uint64_t{frame.get()[i]} << (i % 2 ? 0 : 8);
  fuzz::check(checksum_of(sum) == checksum_of(ones_sum(frame.get(), size)), "another checksum");
  if (const auto datagram = parse_datagram(frame.get(), size)) {
    fuzz::check(datagram->payload >= frame.get() + kUdpHeadersBytes && datagram->payload + datagram->payload_bytes <= frame.get() + size,
                "a datagram outside its frame");
    fuzz::read_all(datagram->payload, datagram->payload_bytes);
  }
  OffloadInfo about{};
  about.flags = input.u8();
  about.gso_type = input.rarely() ? input.u8() : (input.u8() & 1 ? OffloadInfo::kUdp : OffloadInfo::kTcp4);
  about.gso_size = input.rarely() ? input.u16() : input.u8();
  about.checksum_start = input.rarely() ? input.u16() : input.u8();
  about.checksum_offset = input.rarely() ? input.u16() : input.u8();
  std::vector<uint8_t> memory;
  std::vector<uint32_t> sizes;
  if (split_super_frame(about, frame.get(), size, memory, sizes)) {
    size_t total = 0;
    for (const uint32_t bytes : sizes) total += bytes;
    fuzz::check(total == memory.size(), "frames of another size than their memory");
  }
  complete_checksum(frame.get(), size, about.checksum_start, about.checksum_offset);
  if (!view.malformed && view.traffic == Traffic::arp) answer_arp(frame.get(), 0x020000000002);
  else if (!view.malformed && view.traffic == Traffic::echo) answer_echo(frame.get());
}

}  // namespace

const fuzz::Target fuzz::kFrames{"frames", run};
