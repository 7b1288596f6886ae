// A link: packets between one worker and a switch on the same host, through memory that both see.
//
//      worker                        the link's memory (the worker makes it)                   switch
//      packet memory  <---------------------------------------------------------------------- reads words
//      writes entries ----> up ring:   |header, where the words lie, size| ... | ----------->  takes entries
//      takes entries  <---- down ring: |header, where the words lie, size| ... | <-----------  writes entries
//      reads words    --------------------------------------------------------------------->  slot memory
//
// A packet's words are not copied: an entry says where they lie. Its 16 bytes of header are in the entry, because the
// header in a packet's memory may already be the next packet's when an old repeat is taken out of the ring. That the words
// are not, is the window rule's doing (docs/protocol.md): entries leave a ring in order, and by the time that anybody may
// overwrite a packet's words, every entry that points to them and still matters has been taken. An entry of the down ring
// whose words lie in no memory that the worker knows points to its own place in the spare packets behind the rings.
//
// Neither side trusts the other's numbers: what is read from the link's memory is copied first and checked then.
//
// A side that finds its ring empty raises `asleep` and looks again before it sleeps; the other side, having written, rings
// its bell (an eventfd) if that flag is up.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "switchagg/native/shared/wire.h"

namespace switchagg::link {

struct Entry {
  uint32_t region;  // 0: the link's own memory; else a memory that the switch has announced
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
  uint64_t memory_bytes = 0;  // of packet memory

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
  size_t packets() const { return page(spare() + size_t{entries} * packet_bytes); }
  size_t bytes() const { return page(packets() + memory_bytes); }
};

class Writer {
 public:
  Writer() = default;
  Writer(uint8_t* link, size_t ring, size_t entries, uint32_t count)
      : ring_(reinterpret_cast<Ring*>(link + ring)), entries_(reinterpret_cast<Entry*>(link + entries)),
        mask_(count - 1) {}

  // Where the next entry goes, or -1: the ring is full, or the other side has written nonsense.
  int64_t place() const {
    const uint32_t used = written_ - ring_->taken.load(std::memory_order_acquire);
    return used > mask_ ? -1 : static_cast<int64_t>(written_ & mask_);
  }
  void write(int64_t place, const Entry& entry) {
    entries_[place] = entry;
    ++written_;
  }
  // Shows what was written. True if the other side has to be woken.
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

  // Entries that are there; more than the ring holds where the other side has written nonsense.
  uint32_t available() const { return ring_->written.load(std::memory_order_acquire) - next_; }
  bool sane(uint32_t count) const { return count <= mask_ + 1; }
  void take(Entry& into) {
    std::memcpy(&into, &entries_[next_ & mask_], sizeof into);
    ++next_;
  }
  // Gives the places of all entries taken so far back, with what they point to.
  void release() {
    if (released_ == next_) return;
    released_ = next_;
    ring_->taken.store(next_, std::memory_order_release);
  }
  // Before sleeping. False if there is something to take after all.
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

// What goes over the UNIX socket, in the host's byte order.
constexpr uint32_t kMagic = 0x53574C31;  // "SWL1": changes with everything in this file

struct Attach {  // worker -> switch; with descriptors of the link's memory, of the worker's bell, and of the UDP socket
  uint32_t magic = kMagic;  // whose address the worker is admitted by: nobody else can have it
  Shape shape;
};
struct Attached {  // switch -> worker; with the switch's bell
  uint32_t magic = kMagic;
  uint32_t accepted = 0;
};
struct Announce {  // switch -> worker, before the first entry that points there; with the memory
  uint32_t magic = kMagic;
  uint32_t region = 0;
  uint64_t bytes = 0;
};

}  // namespace switchagg::link
