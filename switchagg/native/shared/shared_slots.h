// A job's slots in memory that its workers share. Whoever brings a packet runs the slot machine: no packet is handed to
// another process, and there is no other process to wait for.
//
//      worker 0  --words-->  records of worker 0 --+                             result records  --words-->  every worker
//      worker 1  --words-->  records of worker 1 --+--> one worker adds them -->
//         ...                                      |      (whoever looks first)
//                              slot: round, seen, claimed, done
//
// A contribution is the words in the worker's own record, and then its bit in `seen`, by one compare-and-swap of round and
// bits: no lock, so nothing that a worker which dies could hold. When `seen` is full, all words are in place. The first
// worker that finds the slot full claims it, adds the records up, and sets `done`, which is the RESULT. While one worker
// adds, others send or add other slots. Where a single worker had words, nobody adds: they are read from its record.
//
// A worker whose contribution is the last of a round need not write its record: it claims the slot, contributes, and adds the words
// in its cache to the others' records. They can be had back, as the RESULT less the others' records.
//
// The window rule (docs/protocol.md, section 11) keeps records from being overwritten while somebody may read them. A worker that
// is stopped between claiming and `done` holds up its job, as one that sends nothing does. All of it is memory of one generation:
// a worker that goes on after the others have left it writes what nobody reads.
//
// Rules and counters are those of switchagg/rules/slots.py; effect_of() states them for this engine and for SlotTable.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "switchagg/native/shared/shared_sums.h"
#include "switchagg/native/shared/slot_kernels.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg {

// Outcomes of admitted packets, with the codes of the P4 programs (p4/include/constants.p4), so that the counters
// correspond. An accepted packet that made its slot full counts under its outcome + kCompleting.
enum class Outcome : uint8_t {
  stale = 0,
  duplicate = 1,
  misplaced = 2,  // a slot of the job, but not base + (seq mod P)
  answered = 3,
  initialised = 4,
  skip = 16,        // into a slot with words
  empty_skip = 17,  // into a slot without
  stored = 18,
  added = 19,
  ored = 20,
  fresh_skip = 21,
  fresh_stored = 22,
};
inline constexpr uint32_t kCompleting = 8, kOutcomes = 32;

struct SlotRound {
  uint32_t seq = 0, seen = 0;
  bool filled = false;
};

struct Effect {  // of an admitted packet on its slot
  Outcome outcome;
  bool accepted = false, completing = false;
  SlotRound after{};
};

// `slots` is P, `full` has the bits of all workers; the packet is of the slot's job and number.
Effect effect_of(const SlotRound& slot, uint32_t slots, uint32_t full, uint32_t seq, uint32_t bit, bool words, bool is_or);

class SharedSlots {
 public:
  struct Shape {
    uint32_t workers = 0, slots = 0, words = 0;
    bool valid() const {
      return workers >= 1 && workers <= wire::kMaxWorkers && slots >= 2 && slots <= (1 << 16) && (slots & (slots - 1)) == 0 &&
             words >= wire::kMinWords && words <= wire::kMaxWords;
    }
    static constexpr size_t page(size_t bytes, size_t each = 4096) { return (bytes + each - 1) / each * each; }
    uint32_t stride() const { return wire::kHeaderBytes + 4 * words; }
    size_t records_bytes() const { return page(size_t{slots} * stride()); }  // of one worker
    size_t slots_at() const { return page(sizeof(Head)); }
    size_t results_at() const { return page(slots_at() + slots * sizeof(Slot)); }
    size_t records_at() const { return results_at() + records_bytes(); }
    size_t sums_at() const { return page(records_at() + workers * records_bytes(), kHugePage); }
    size_t bytes() const { return sums_at() + SharedSums::bytes(workers); }
  };

  struct Counts {  // one writer each
    std::array<std::atomic<uint64_t>, kOutcomes> outcomes;
    std::atomic<uint64_t> packets, retransmissions, fenced;
  };

  struct Words {  // of a RESULT
    const uint8_t* header;
    const uint8_t* words;  // null: it has none
  };

  SharedSlots() = default;
  SharedSlots(uint8_t* memory, const Shape& shape)
      : shape_(shape), mask_(shape.slots - 1), memory_(memory), head_(reinterpret_cast<Head*>(memory)),
        slots_(reinterpret_cast<Slot*>(memory + shape.slots_at())) {}

  // Writes the facts of a job into zeroed memory. `bits` has one bit for each worker.
  void make(uint16_t job, uint32_t base, uint32_t result_token, const uint32_t* bits);
  void initialise(uint32_t seq);  // by INIT: the round is complete, and has no words
  void fence(uint32_t bits) { head_->fenced.store(bits, std::memory_order_relaxed); }

  const Shape& shape() const { return shape_; }
  // The memory for the words of a worker's packet, written before it contributes.
  uint8_t* record(uint32_t worker, uint32_t slot) const {
    return memory_ + shape_.records_at() + worker * shape_.records_bytes() + size_t{slot} * shape_.stride();
  }
  SlotRound round(uint32_t slot) const { return unpack(slot, slots_[slot].state.load(std::memory_order_acquire)); }
  bool fenced(uint32_t worker) const { return head_->fenced.load(std::memory_order_relaxed) & head_->seats[worker].bit; }

  // Prefetches a slot, which other processors have written.
  void fetch(uint32_t seq) const { __builtin_prefetch(&slots_[seq & mask_]); }
  void fetch_to_write(uint32_t seq) const { __builtin_prefetch(&slots_[seq & mask_], 1); }

  Effect contribute(uint32_t worker, uint32_t seq, bool words, bool is_or);
  bool done(uint32_t seq) const { return slots_[seq & mask_].done.load(std::memory_order_acquire) == seq; }
  // The round is complete, and nobody adds it up.
  bool is_unclaimed(uint32_t seq) const {
    const Slot& slot = slots_[seq & mask_];
    return slot.claimed.load(std::memory_order_relaxed) != seq && full_round(slot, seq);
  }
  // All other workers have brought their packets of this round, and this one has not.
  bool is_last(uint32_t worker, uint32_t seq) const {
    const SlotRound now = round(seq & mask_);
    return now.seq == seq && now.seen == (head_->full & ~head_->seats[worker].bit);
  }
  // Contributes to a round of which is_last() is true, by SUM, words that are not in the worker's record, and adds up `used` of them.
  Effect complete(uint32_t worker, uint32_t seq, const uint8_t* words, uint32_t used);
  // Writes such words to the record, until another worker contributes to the slot's next round.
  void restore(uint32_t worker, uint32_t seq) const;
  // Adds a complete round up, unless somebody else does. True if it is done. Of the K words, `used` are added: all that any worker's
  // packet has, or that any reads.
  bool finish(uint32_t seq, uint32_t used);
  Words result(uint32_t seq) const;                       // of a round that is done
  const uint8_t* record_of_result(uint32_t seq) const;    // the same in one piece, as a packet
  // Writes the K words of an incomplete or complete round, for people.
  void view(uint32_t slot, uint8_t* words) const;

  // A worker sleeps on its own word. Others wake it when a round that it may wait for is done.
  std::atomic<uint32_t>& wake_ups(uint32_t worker) const { return head_->seats[worker].wake_ups; }
  std::atomic<uint32_t>& asleep(uint32_t worker) const { return head_->seats[worker].asleep; }
  // Notes the core on which a worker runs.
  void note_core(uint32_t worker, int core) const;
  // 1 while a worker looks again and again, and yields its core in between.
  std::atomic<uint32_t>& polls(uint32_t worker) const { return head_->seats[worker].polls; }
  // Another worker that waited last on this one's core neither sleeps nor polls.
  bool others_work(uint32_t worker) const;
  // Another of `cores`, which are in order, on which at least two workers fewer waited last than are awake on `core`; of several with
  // the fewest the next one behind it. -1: none.
  int emptier(int core, std::span<const int> cores) const;
  // Wakes all that sleep. Returns their number.
  uint32_t wake_all() const;
  static void wake(std::atomic<uint32_t>& word);
  // Until the word is no longer `value`, or for `timeout_ns`.
  static void sleep(std::atomic<uint32_t>& word, uint32_t value, int64_t timeout_ns);

  void count(uint32_t worker, const Effect& effect, bool retransmission);
  void count_fenced(uint32_t worker) { add(head_->seats[worker].counts.fenced); }
  const Counts& counts(uint32_t worker) const { return head_->seats[worker].counts; }

 private:
  struct Seat {
    alignas(128) std::atomic<uint32_t> wake_ups;
    std::atomic<uint32_t> asleep;
    std::atomic<uint32_t> core;  // 1 + the number of the one on which the worker waited last; 0: not known
    uint32_t bit;
    std::atomic<uint32_t> polls;
    alignas(64) Counts counts;
  };
  struct Head {
    uint32_t full, result_token, base;
    uint16_t job;
    alignas(64) std::atomic<uint32_t> fenced;
    std::array<Seat, wire::kMaxWorkers> seats;
  };
  // Of each worker in a round: whether it brought words, reduces them with OR, has them elsewhere than in its record, and how many
  // came before it.
  static constexpr uint8_t kWords = 0x80, kOr = 0x40, kElsewhere = 0x20, kBefore = 0x1F;
  struct alignas(64) Slot {
    std::atomic<uint64_t> state;  // seq without its lowest bit, which is the slot's; filled; seen
    std::atomic<uint32_t> claimed, done;  // the latest seq that somebody adds up, that has been
    uint32_t words_of;            // of `done`: the one worker that had words, or kNobody or kSum
    uint32_t used;                // of that: words that were added; those behind them are of an older RESULT
    std::array<std::atomic<uint8_t>, wire::kMaxWorkers> brought;
  };
  static_assert(sizeof(Slot) == 64 && std::atomic<uint64_t>::is_always_lock_free);
  static constexpr uint32_t kNobody = 64, kSum = 65;

  static constexpr uint64_t kNew = uint64_t{1} << 32;  // filled by nobody: a slot before INIT, whose seq is 0
  static uint64_t pack(const SlotRound& round) {
    return uint64_t{round.seq >> 1} << 33 | uint64_t{round.filled} << 32 | round.seen;
  }
  static SlotRound unpack(uint32_t slot, uint64_t state) {
    if (state == kNew) return {};
    return {static_cast<uint32_t>(state >> 33) << 1 | (slot & 1), static_cast<uint32_t>(state), (state >> 32 & 1) != 0};
  }
  bool full_round(const Slot& slot, uint32_t seq) const {
    const uint64_t state = slot.state.load(std::memory_order_acquire);
    return static_cast<uint32_t>(state) == head_->full && state >> 33 == seq >> 1;
  }
  static void add(std::atomic<uint64_t>& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  uint8_t* result_record(uint32_t slot) const {
    return memory_ + shape_.results_at() + size_t{slot} * shape_.stride();
  }
  Effect bring(uint32_t worker, uint32_t seq, uint8_t what);
  uint32_t combine(uint32_t slot, uint32_t seen, uint8_t* to, uint32_t used, bool copy_one, const uint8_t* elsewhere) const;
  void add_up(uint32_t seq, const uint8_t* elsewhere, uint32_t used);

  Shape shape_;
  uint32_t mask_ = 0;
  uint8_t* memory_ = nullptr;
  Head* head_ = nullptr;
  Slot* slots_ = nullptr;
};

}  // namespace switchagg
