// Sums in memory that the workers of a job share, beside its slots (shared_slots.h): large ones have no slots, but units of many packets,
// or of many floats, of which each worker adds up a share for all.
//
//      worker 0  --the others' shares-->  record --+                                result  -->  every other worker
//      worker 1  --the others' shares-->  record --+--> worker r adds up share r -->
//         ...
//
// Of each unit a worker does three things: it puts its words into its record, adds up its share once all have put theirs, and takes
// the shares of others as they are done. Each counts what it has done, in words that it alone writes. A unit's memory serves again
// some units later: records once all have added up their shares, results once all have taken them.
//
// Of a whole unit, which has few floats, each worker puts all, and adds up all for itself: nobody takes anything.
//
// Floats of a call's first units may be in records before it is known that they are summed so. A worker says of which call they are before it
// sends that call's plan; so when the plan has its RESULT nobody waits for them.
//
// Workers start the same units in the same order: those of the segments (docs/protocol.md, section 11) that all of them sum so.
// The memory is of one generation, as the slots are, and outlives a move of the job to another switch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg {

class SharedSums {
 public:
  static constexpr uint64_t kUnit = 1 << 17;  // words
  // Words from one record to the next. What is added up together has the same place in each record. Were they a power of two apart, all of it
  // would be in one set of each cache, and a set has room for fewer lines than there may be ranks. So each is a page and four lines more apart.
  static constexpr uint64_t kApart = kUnit + (4096 + 256) / 4;
  // Units at a time; of many workers two fill the caches.
  static constexpr uint64_t buffers(uint32_t workers) { return workers <= 4 ? 4 : 2; }
  static constexpr size_t bytes(uint32_t workers) { return sizeof(Head) + buffers(workers) * (workers + size_t{1}) * 4 * kApart; }

  // So many floats of all workers at most are a whole unit, of which each worker reads all.
  static constexpr uint64_t kMostWhole = 1 << 14;

  struct Share {  // of a unit's elements or packets
    uint64_t from, count;
  };
  struct Action {
    enum class Kind : uint8_t { put, add, take } kind;
    uint64_t unit;
    uint32_t worker = 0;  // of the share that is taken
  };

  // In what was zeroed when the job got it, from byte `at` on.
  SharedSums(std::shared_ptr<SharedMemory> memory, size_t at, uint32_t workers, uint32_t worker)
      : memory_(std::move(memory)), head_(reinterpret_cast<Head*>(memory_->get() + at)),
        words_(reinterpret_cast<uint32_t*>(memory_->get() + at + sizeof(Head))), workers_(workers), worker_(worker),
        buffers_(buffers(workers)) {
    head_->seats[worker].here.store(1, std::memory_order_release);
  }

  uint32_t workers() const { return workers_; }
  uint32_t worker() const { return worker_; }
  bool is_whole(uint64_t floats) const { return floats > 0 && workers_ * floats <= kMostWhole; }  // if they are of a dense tensor
  // All workers have this memory. Once a packet of each is known to have been sent, the answer is the same to all.
  bool all_here() const {
    return each_seat([](const Seat& seat) { return seat.here.load(std::memory_order_acquire) != 0; });
  }

  // The part of a unit of `count` elements or packets that a worker adds up: whole groups of `grain`.
  Share share(uint64_t count, uint32_t worker, uint64_t grain) const {
    const uint64_t groups = (count + grain - 1) / grain;
    const auto place = [&](uint64_t n) { return std::min(count, groups * n / workers_ * grain); };
    return {place(worker), place(worker + uint64_t{1}) - place(worker)};
  }
  uint32_t* record(uint64_t unit, uint32_t worker) const {
    return words_ + (unit % buffers_ * (workers_ + 1) + worker) * kApart;
  }
  uint32_t* result(uint64_t unit) const { return record(unit, workers_); }

  // To be called before units are started that are not whole: for the first, as jobs without large sums need less memory.
  void use_huge_pages() {
    if (worker_ == 0 && !std::exchange(huge_, true)) memory_->use_huge_pages(static_cast<size_t>(reinterpret_cast<uint8_t*>(head_) - memory_->get()));
  }
  // Units to be done after those before, or a `whole` one. Returns the number of the first.
  uint64_t start(uint64_t units, bool whole = false) {
    const uint64_t first = started_.fetch_add(units, std::memory_order_relaxed);
    if (whole) {
      gaps_.push_back({first, first + 1, true});
      pass_gaps();
    }
    return first;
  }
  // The first units of a call. `alone`: it has one unit. `early`: the number of the call, if workers may have put them early.
  uint64_t start_first(uint64_t units, bool alone, std::optional<uint64_t> early, bool whole = false) {
    first_ = first_of_call(alone);
    call_ = early.value_or(UINT64_MAX);
    if (first_ > started()) gaps_.push_back({started(), first_, false});
    started_.store(first_, std::memory_order_relaxed);
    pass_gaps();  // wakes nobody: who adds the first unit does
    return start(units, whole);
  }
  // Calls begin with the first buffer, which is in the caches if the calls before were short. Those of one unit follow each other in all
  // buffers, so that several can be under way.
  uint64_t first_of_call(bool alone) const { return alone ? started() : (started() + buffers_ - 1) / buffers_ * buffers_; }
  // All have added up the record's last words: this worker may write its own.
  bool is_free(uint64_t unit) const { return all_past(&Seat::added, unit); }
  // This worker has put all that was started.
  bool all_is_put() const { return put_ >= started(); }
  // This worker's records have the first `units` of a call. To be said before it sends the call's plan.
  void note_early(uint64_t call, uint64_t units) {
    head_->seats[worker_].early.store(call * kMostUnits + units, std::memory_order_release);
  }
  uint64_t started() const { return started_.load(std::memory_order_relaxed); }
  // Those from this one on are not done. The engine that starts them must not do so meanwhile.
  void stop(uint64_t unit) { started_.store(std::min(unit, started()), std::memory_order_relaxed); }
  uint64_t taken() const { return std::min(added_, *std::min_element(taken_.begin(), taken_.begin() + workers_)); }

  // The next thing that this worker can do now.
  std::optional<Action> next() const {
    const uint64_t started = this->started(), end = std::min(put_, started);
    // First, so that a whole unit that was put early is counted before the next call's plan is sent.
    if (put_ < started && has_put(head_->seats[worker_], put_)) return Action{Action::Kind::put, put_};
    if (added_ < end && all_past(&Seat::taken, added_) && all_put(added_)) return Action{Action::Kind::add, added_};
    if (put_ < started && is_free(put_)) return Action{Action::Kind::put, put_};
    for (uint32_t i = 1; i < workers_; ++i) {
      const uint32_t other = worker_ + i < workers_ ? worker_ + i : worker_ + i - workers_;
      if (taken_[other] < end && head_->seats[other].added.load(std::memory_order_acquire) > taken_[other])
        return Action{Action::Kind::take, taken_[other], other};
    }
    return std::nullopt;
  }
  // Tells the others. True if they may have waited for it: for what all have to do, the last wakes them.
  bool did(const Action& action) {
    Seat& own = head_->seats[worker_];
    if (action.kind == Action::Kind::put) {
      const bool known = has_put(own, action.unit);  // early; others who wait for it are woken when this worker adds
      ++put_;
      pass_gaps();
      std::atomic_thread_fence(std::memory_order_seq_cst);  // of two that are last at once, one sees both
      return !known && all_put(action.unit);
    }
    if (action.kind == Action::Kind::add) {
      taken_[worker_] = ++added_;
    } else {
      ++taken_[action.worker];
    }
    const bool whole = std::ranges::any_of(gaps_, [&](const Gap& gap) { return gap.whole && gap.from == action.unit; });
    const uint64_t done = taken();
    pass_gaps();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (action.kind == Action::Kind::add) return !whole || all(&Seat::added, action.unit + 1);
    return all(&Seat::taken, done);
  }
  // Something that was started is not done.
  bool waits() const { return taken() < started(); }
  // A bit for each worker that this one waits for.
  uint32_t late() const {
    const uint64_t end = std::min(put_, started());
    uint32_t found = 0;
    for (uint32_t i = 0; i < workers_; ++i) {
      const Seat& seat = head_->seats[i];
      const bool puts = added_ < end && !has_put(seat, added_);
      const bool takes = added_ < end && seat.taken.load(std::memory_order_relaxed) + buffers_ <= added_;
      const bool adds = added_ >= end && taken_[i] < end && seat.added.load(std::memory_order_relaxed) <= taken_[i];
      const bool keeps = added_ >= end && put_ < started() && seat.added.load(std::memory_order_relaxed) + buffers_ <= put_;
      if (i != worker_ && (puts || adds || takes || keeps)) found |= 1u << i;
    }
    return found;
  }

 private:
  static constexpr uint64_t kMostUnits = 256;  // that are early
  struct Seat {
    alignas(128) std::atomic<uint64_t> put;  // units
    std::atomic<uint64_t> added, taken;
    std::atomic<uint64_t> early;  // call number, by kMostUnits, and how many of its units
    std::atomic<uint32_t> here;
  };
  struct Head {
    alignas(4096) std::array<Seat, wire::kMaxWorkers> seats;
  };

  template <typename F>
  bool each_seat(F&& f) const {
    return std::all_of(head_->seats.begin(), head_->seats.begin() + workers_, f);
  }
  // Passes numbers between two calls that no unit has, and of whole units what would be taken; tells the others what this worker has done.
  void pass_gaps() {
    for (const Gap& gap : gaps_) {
      const auto pass = [&](uint64_t& done) { done = done == gap.from ? gap.to : done; };
      if (!gap.whole) pass(put_), pass(added_);
      std::for_each(taken_.begin(), taken_.begin() + workers_, pass);
    }
    while (!gaps_.empty() && gaps_.front().to <= taken()) gaps_.pop_front();
    Seat& own = head_->seats[worker_];
    own.put.store(put_, std::memory_order_release);
    own.added.store(added_, std::memory_order_release);
    own.taken.store(taken(), std::memory_order_release);
  }
  bool has_put(const Seat& seat, uint64_t unit) const {
    const uint64_t early = seat.early.load(std::memory_order_acquire);  // before `put`, which may pass what was early of an earlier call
    return (early / kMostUnits == call_ && unit >= first_ && unit - first_ < early % kMostUnits) ||
           seat.put.load(std::memory_order_acquire) > unit;
  }
  bool all_put(uint64_t unit) const {
    return each_seat([&](const Seat& seat) { return has_put(seat, unit); });
  }
  // All have done so much with the unit that had this one's memory before.
  bool all_past(std::atomic<uint64_t> Seat::*counter, uint64_t unit) const {
    return unit < buffers_ || all(counter, unit + 1 - buffers_);
  }
  bool all(std::atomic<uint64_t> Seat::*counter, uint64_t least) const {
    return each_seat([&](const Seat& seat) { return (seat.*counter).load(std::memory_order_acquire) >= least; });
  }

  std::shared_ptr<SharedMemory> memory_;
  Head* head_;
  uint32_t* words_;
  uint32_t workers_, worker_;
  uint64_t buffers_;
  std::atomic<uint64_t> started_{0};  // the others are the driver's alone
  bool huge_ = false;
  uint64_t put_ = 0, added_ = 0;
  struct Gap {
    uint64_t from, to;
    bool whole;  // a unit, of which nothing is taken
  };
  std::deque<Gap> gaps_;
  uint64_t first_ = 0, call_ = UINT64_MAX;  // of the last call whose first units were started
  std::array<uint64_t, wire::kMaxWorkers> taken_{};  // of each worker's shares
};

}  // namespace switchagg
