// A queue of packets from one packet loop to another: those that the kernel gave to the wrong one, with their bytes.
//
// One thread puts, one takes, and neither waits. What finds no room is dropped and counted, as in a full socket buffer.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "switchagg/native/shared/port.h"
#include "switchagg/native/switch/concurrency.h"

namespace switchagg {

class StrayQueue {
 public:
  // As many bytes as one receive() of a UdpPort takes, and more: such a batch fits into an empty queue. That of a device or
  // of rings need not, where packets are large and there are several queues, ports or workers.
  static constexpr uint64_t kBytes = uint64_t{1} << 20;

  StrayQueue() : memory_(kBytes) {}

  void put(const Received& packet) {
    const uint64_t written = written_.load(std::memory_order_relaxed), at = written % kBytes;
    const uint64_t need = sizeof(Entry) + rounded(packet.size);
    const uint64_t skipped = at + need > kBytes ? kBytes - at : 0;  // a packet lies in one piece
    if (written - taken_.load(std::memory_order_acquire) + skipped + need > kBytes) {
      ++dropped_;
      return;
    }
    if (skipped) *entry(at) = {{}, kSkip, 0};
    Entry* const to = entry(skipped ? 0 : at);
    *to = {packet.peer, packet.size, 0};
    packet.copy_to(reinterpret_cast<uint8_t*>(to + 1));
    written_.store(written + skipped + need, std::memory_order_release);
    ++put_;
  }

  // Appends all that is there; the views are valid until the next take().
  void take(std::vector<Received>& into) {
    taken_.store(next_, std::memory_order_release);
    const uint64_t end = written_.load(std::memory_order_acquire);
    while (next_ != end) {
      const Entry* const from = entry(next_ % kBytes);
      if (from->size == kSkip) {
        next_ += kBytes - next_ % kBytes;
        continue;
      }
      into.push_back(Received::whole(reinterpret_cast<const uint8_t*>(from + 1), from->size, from->peer));
      next_ += sizeof(Entry) + rounded(from->size);
    }
  }

  uint64_t packets() const { return put_; }
  uint64_t dropped() const { return dropped_; }

 private:
  struct Entry {
    Endpoint peer;
    uint32_t size;
    uint32_t unused;
  };
  static_assert(sizeof(Entry) == 16);
  static constexpr uint32_t kSkip = ~uint32_t{0};
  static constexpr uint64_t rounded(uint32_t bytes) { return (uint64_t{bytes} + 15) & ~uint64_t{15}; }
  Entry* entry(uint64_t at) const { return reinterpret_cast<Entry*>(memory_.get() + at); }

  PacketMemory memory_;
  alignas(64) std::atomic<uint64_t> written_{0};  // free-running counts of bytes
  RelaxedCounter put_, dropped_;
  alignas(64) std::atomic<uint64_t> taken_{0};
  uint64_t next_ = 0;  // the taker's
};

}  // namespace switchagg
