// A link: packets between one worker and a switch on the same host, through shared memory.
//
//      worker                        the link's memory (made by the worker)                     switch
//      packet memory (its own too)  <-------------------------------------------------------- reads words
//      writes entries ----> up ring:   |header, offset of words, size| ... |     ----------->  takes entries
//      takes entries  <---- down ring: |header, offset of words, size| ... |     <-----------  writes entries
//      reads words    --------------------------------------------------------------------->  slot memory
//
// Words are not copied: an entry holds their offset, and the 16 bytes of header itself, because the header in the worker's
// memory may already be the next packet's when a late retransmission leaves the ring. Of such a repeat the switch reads no
// words, and the window rule (docs/protocol.md, section 11) lets a worker or switch overwrite words only when no other entry
// needs them. An entry of the down ring whose words are in no announced memory points to its own place in
// the spare packets behind the rings.
//
// A switch with several threads has a UNIX socket for each, and the worker a link to each; their packets are in one packet
// memory. It hands a packet to the thread that has its slot, and one that comes to another is handed over (switch/shards.h).
//
// Neither side trusts the other's numbers: it copies what it reads from the link's memory and then checks the copy.
//
// Before it sleeps, a side that finds its ring empty sets `asleep` and looks again. The other side writes, and rings if the
// flag is set: a byte through a pair of connected sockets of the link's own. Each side has an end, and how it writes and
// reads there is its own choice; flags of a descriptor that both hold would be the other's to change.
#pragma once

#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg::link {

// About what sleeping and being woken costs, to both sides.
constexpr int64_t kBusyPollNs = 50'000;

// Yields the processor until there() is true, which it returns, or go_on() of the nanoseconds so far is not.
template <typename F, typename G>
bool yield_while(F&& there, G&& go_on) {
  const int64_t begun = now_ns();
  do {
    sched_yield();
    if (there()) return true;
  } while (go_on(now_ns() - begun));
  return false;
}

// Yields the processor once, or with `repeatedly` for up to kBusyPollNs, until there() is true; returns there(). Only a
// thread that waits for little should poll repeatedly: it takes the processor from threads with work.
template <typename F>
bool busy_poll(bool repeatedly, F&& there) {
  return there() || yield_while(there, [repeatedly](int64_t spent) { return repeatedly && spent < kBusyPollNs; });
}

struct Entry {
  uint32_t region;  // up, 0: packet memory. Down, 0: the link's own memory; else a memory that the switch has announced
  uint32_t size;    // of the whole packet, header and words
  uint64_t offset;  // of the words
  uint8_t header[wire::kHeaderBytes];
};
static_assert(sizeof(Entry) == 32);

struct Ring {  // free-running counts; a line of cache each, since different sides write them
  alignas(64) std::atomic<uint32_t> written;
  alignas(64) std::atomic<uint32_t> taken;
  alignas(64) std::atomic<uint32_t> asleep;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

struct Shape {
  uint32_t entries = 0;       // in each ring: a power of two
  uint32_t packet_bytes = 0;  // of the largest packet
  uint64_t memory_bytes = 0;  // of packet memory, which is no part of the link's

  static constexpr uint32_t kMinEntries = 64, kMaxEntries = 1 << 18;
  static constexpr uint64_t kMaxMemory = uint64_t{1} << 32;
  bool valid() const {
    return entries >= kMinEntries && entries <= kMaxEntries && std::has_single_bit(entries) &&
           packet_bytes >= wire::kHeaderBytes && packet_bytes <= wire::kMaxPacketBytes && memory_bytes <= kMaxMemory;
  }
  static constexpr size_t page(size_t bytes) { return (bytes + 4095) & ~size_t{4095}; }
  size_t up_ring() const { return 0; }
  size_t down_ring() const { return sizeof(Ring); }
  size_t up_entries() const { return page(2 * sizeof(Ring)); }
  size_t down_entries() const { return up_entries() + entries * sizeof(Entry); }
  size_t spare() const { return page(down_entries() + entries * sizeof(Entry)); }
  size_t bytes() const { return page(spare() + size_t{entries} * packet_bytes); }
};

class Writer {
 public:
  Writer() = default;
  Writer(uint8_t* link, size_t ring, size_t entries, uint32_t count)
      : ring_(reinterpret_cast<Ring*>(link + ring)), entries_(reinterpret_cast<Entry*>(link + entries)),
        mask_(count - 1) {}

  // The index of the next entry, or -1: the ring is full, or the other side wrote an impossible count.
  int64_t next_index() const {
    const uint32_t used = written_ - ring_->taken.load(std::memory_order_acquire);
    return used > mask_ ? -1 : static_cast<int64_t>(written_ & mask_);
  }
  void write(int64_t index, const Entry& entry) {
    entries_[index] = entry;
    ++written_;
  }
  // Publishes the written entries. True if the other side has to be woken.
  bool publish() {
    ring_->written.store(written_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return ring_->asleep.load(std::memory_order_relaxed) != 0 &&
           ring_->asleep.exchange(0, std::memory_order_relaxed) != 0;
  }

 private:
  Ring* ring_ = nullptr;
  Entry* entries_ = nullptr;
  uint32_t mask_ = 0, written_ = 0;
};

class Reader {
 public:
  Reader() = default;
  Reader(uint8_t* link, size_t ring, size_t entries, uint32_t count)
      : ring_(reinterpret_cast<Ring*>(link + ring)), entries_(reinterpret_cast<const Entry*>(link + entries)),
        mask_(count - 1) {}

  // Entries to take; more than the ring holds if the other side wrote an impossible count.
  uint32_t available() const { return ring_->written.load(std::memory_order_acquire) - next_; }
  bool sane(uint32_t count) const { return count <= mask_ + 1; }
  void take(Entry& into) {
    std::memcpy(&into, &entries_[next_ & mask_], sizeof into);
    ++next_;
  }
  // Frees the entries taken so far, and what they point to.
  void release() {
    if (released_ == next_) return;
    released_ = next_;
    ring_->taken.store(next_, std::memory_order_release);
  }
  // Call before sleeping. False if there is an entry to take.
  bool fall_asleep() {
    ring_->asleep.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (available() == 0) return true;
    awake();
    return false;
  }
  void awake() { ring_->asleep.store(0, std::memory_order_relaxed); }

 private:
  Ring* ring_ = nullptr;
  const Entry* entries_ = nullptr;
  uint32_t mask_ = 0, next_ = 0, released_ = 0;
};

// Messages over the UNIX socket, in the host's byte order.
constexpr uint32_t kMagic = 0x53574C36;  // "SWL6": changes with everything in this file, and with the memory of shared slots

// The name of a thread's UNIX socket; that of the first is the switch's.
inline std::string name_of(const std::string& name, uint32_t thread) {
  return thread ? name + "." + std::to_string(thread) : name;
}

// Worker -> switch, with descriptors of the link's memory, of packet memory and of a UDP socket. The link is for this job, in which
// a worker with the socket's address and this token is admitted. The socket alone proves nothing: one can be bound to any host's
// address.
struct Attach {
  uint32_t magic = kMagic;
  uint32_t job = 0, token = 0;
  Shape shape;
};
struct Attached {  // switch -> worker, with the worker's end of the bell
  uint32_t magic = kMagic;
  uint32_t threads = 0;  // of the switch, to each of which the worker attaches
};
// With the descriptor of the UDP socket alone and a shape of zeros, Attach asks for the memory of the job's shared slots
// (shared_slots.h). The socket then says no more than that both sides live.
struct AttachedSlots {  // switch -> worker, with the descriptor of that memory
  uint32_t magic = kMagic;
  uint32_t worker = 0;  // which one it is, of so many
  uint32_t workers = 0, slots = 0, words = 0;
};
struct Announce {  // switch -> worker, with memory that later entries point to
  uint32_t magic = kMagic;
  uint32_t region = 0;
  uint64_t bytes = 0;
};

// Rings at the other end of a bell. Never blocks; where the buffer is full the other side has not heard yet.
inline void ring_bell(int end) {
  const char byte = 0;
  [[maybe_unused]] const auto n = ::send(end, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
// Takes what the other end has rung. False if it is closed.
inline bool hear_bell(int end) {
  char bytes[256];
  return ::recv(end, bytes, sizeof bytes, MSG_DONTWAIT) != 0;
}

}  // namespace switchagg::link
