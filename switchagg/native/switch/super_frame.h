// Frames as they would be on a cable, out of what a packet socket gives for virtual links.
//
// What a process of this host has sent over a virtual link has a checksum that the kernel left for a network card to complete,
// and may be a super-frame, up to 64 KB that a card would have cut up (TSO, UDP_SEGMENT). The kernel says so in a virtio_net_hdr
// (PACKET_VNET_HDR). No I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "switchagg/native/shared/port.h"

namespace switchagg {

// What the kernel writes before a frame: virtio_net_hdr of linux/virtio_net.h, which C++ cannot include everywhere.
struct FrameNote {
  static constexpr uint8_t kNeedsChecksum = 1;              // in flags
  static constexpr uint8_t kTcp4 = 1, kTcp6 = 4, kUdp = 5;  // in gso_type; 0: no super-frame
  static constexpr uint8_t kCongestion = 0x80;              // beside one of these
  uint8_t flags, gso_type;
  uint16_t header_bytes, gso_size, checksum_start, checksum_offset;
};
static_assert(sizeof(FrameNote) == 10);

// Completes the checksum that begins at `start` of the frame and lies `offset` behind that; false where it cannot be there.
bool complete_checksum(uint8_t* frame, uint32_t size, uint32_t start, uint32_t offset);

// Cuts a super-frame into frames that it appends to `memory` one after the other, with their sizes; false for one of a kind
// that it does not know, such as IP fragments: nothing is appended then.
bool split_super_frame(const FrameNote& about, const uint8_t* frame, uint32_t size, std::vector<uint8_t>& memory,
                       std::vector<uint32_t>& sizes);

}  // namespace switchagg
