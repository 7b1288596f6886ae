// Dense sums of floats in memory that the workers of a job share, beside its slots (shared_slots.h): no packets, but units of many
// elements, of which each worker adds up a share for all.
//
//      worker 0  --floats of the others' shares-->  record --+                                result  --floats-->  every other worker
//      worker 1  --floats of the others' shares-->  record --+--> worker r adds up share r -->
//         ...
//
// Of each unit a worker does three things: it puts its floats into its record, adds up its share once all have put theirs, and takes
// the shares of others as they are done. Each counts what it has done, in a word that it alone writes. A unit's memory serves again
// kBuffers units later, once all workers have taken all of it.
//
// Workers start the same units in the same order: those of the segments (docs/protocol.md, section 11) that all of them sum so.
// The memory is of one generation, as the slots are, and outlives a move of the job to another switch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg {

class SharedSums {
 public:
  static constexpr uint64_t kUnit = 1 << 17;  // elements
  static constexpr uint64_t kBuffers = 2;     // units at a time
  static constexpr size_t bytes(uint32_t workers) { return sizeof(Head) + kBuffers * (workers + size_t{1}) * 4 * kUnit; }

  struct Share {  // elements of a unit
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
        floats_(reinterpret_cast<float*>(memory_->get() + at + sizeof(Head))), workers_(workers), worker_(worker) {
    head_->seats[worker].here.store(1, std::memory_order_release);
  }

  uint32_t workers() const { return workers_; }
  uint32_t worker() const { return worker_; }
  // All workers have this memory. Once a packet of each is known to have been sent, the answer is the same to all.
  bool all_here() const {
    return each_seat([](const Seat& seat) { return seat.here.load(std::memory_order_acquire) != 0; });
  }

  // The part of a unit of `count` elements that a worker adds up: whole lines of cache.
  Share share(uint64_t count, uint32_t worker) const {
    const uint64_t lines = workers_ * kLine, each = (count + lines - 1) / lines * kLine, from = std::min(count, each * worker);
    return {from, std::min(count, from + each) - from};
  }
  float* record(uint64_t unit, uint32_t worker) const {
    return floats_ + (unit % kBuffers * (workers_ + 1) + worker) * kUnit;
  }
  float* result(uint64_t unit) const { return record(unit, workers_); }

  // Units to be done after those before. Returns the number of the first.
  uint64_t start(uint64_t elements) {
    return started_.fetch_add((elements + kUnit - 1) / kUnit, std::memory_order_relaxed);
  }
  uint64_t started() const { return started_.load(std::memory_order_relaxed); }
  // Those from this one on are not done. The engine that starts them must not do so meanwhile.
  void stop(uint64_t unit) { started_.store(std::min(unit, started()), std::memory_order_relaxed); }
  uint64_t taken() const { return std::min(added_, *std::min_element(taken_.begin(), taken_.begin() + workers_)); }

  // The next thing that this worker can do now.
  std::optional<Action> next() const {
    const uint64_t started = this->started(), end = std::min(put_, started);
    if (added_ < end && all(&Seat::put, added_ + 1)) return Action{Action::Kind::add, added_};
    if (put_ < started && (put_ < kBuffers || all(&Seat::taken, put_ + 1 - kBuffers))) return Action{Action::Kind::put, put_};
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
      own.put.store(++put_, std::memory_order_release);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // of two that are last at once, one sees both
      return all(&Seat::put, put_);
    }
    if (action.kind == Action::Kind::add) {
      taken_[worker_] = ++added_;
      own.added.store(added_, std::memory_order_release);
    } else {
      ++taken_[action.worker];
    }
    own.taken.store(taken(), std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return action.kind == Action::Kind::add || all(&Seat::taken, taken());
  }
  // Something that was started is not done.
  bool waits() const { return taken() < started(); }
  // A bit for each worker that this one waits for.
  uint32_t late() const {
    const uint64_t end = std::min(put_, started());
    uint32_t found = 0;
    for (uint32_t i = 0; i < workers_; ++i) {
      const Seat& seat = head_->seats[i];
      const bool puts = added_ < end && seat.put.load(std::memory_order_relaxed) <= added_;
      const bool adds = added_ >= end && taken_[i] < end && seat.added.load(std::memory_order_relaxed) <= taken_[i];
      const bool takes = taken() >= end && waits() && seat.taken.load(std::memory_order_relaxed) + kBuffers <= put_;
      if (i != worker_ && (puts || adds || takes)) found |= 1u << i;
    }
    return found;
  }

 private:
  static constexpr uint64_t kLine = 16;  // elements
  struct Seat {
    alignas(128) std::atomic<uint64_t> put;  // units
    std::atomic<uint64_t> added, taken;
    std::atomic<uint32_t> here;
  };
  struct Head {
    alignas(4096) std::array<Seat, wire::kMaxWorkers> seats;
  };

  template <typename F>
  bool each_seat(F&& f) const {
    return std::all_of(head_->seats.begin(), head_->seats.begin() + workers_, f);
  }
  bool all(std::atomic<uint64_t> Seat::*counter, uint64_t least) const {
    return each_seat([&](const Seat& seat) { return (seat.*counter).load(std::memory_order_acquire) >= least; });
  }

  std::shared_ptr<SharedMemory> memory_;
  Head* head_;
  float* floats_;
  uint32_t workers_, worker_;
  std::atomic<uint64_t> started_{0};  // the others are the driver's alone
  uint64_t put_ = 0, added_ = 0;
  std::array<uint64_t, wire::kMaxWorkers> taken_{};  // of each worker's shares
};

}  // namespace switchagg
