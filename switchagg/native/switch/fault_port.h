// Faults as a device: a Port round a Port that loses, duplicates, reorders, delays and corrupts datagrams, in both
// directions.
//
//      engine  <->  FaultPort { FaultLine in, FaultLine out }  <->  inner port
//
// In a line each datagram meets, in this order:
//
//      lost?  ->  one bit flipped?  ->  sent twice?  ->  held back until 1..8 later ones have passed?  ->  delayed
//
// Each direction draws from a generator of its own, a fixed number of times for each datagram, so the same seed and the
// same datagrams in the same order meet the same fate, however they were batched. (When a held datagram is let go because
// time ran out rather than because others passed, its place depends on the clock.)
//
// The checksums of IP and UDP are made and checked by the kernel, below this device: a flipped bit is not caught by them,
// as one in a real network nearly always is. Corruption shows what a switch does with damaged headers; sums come out
// wrong.
//
// What survives untouched is passed on as a view of the caller's bytes, so that trains of datagrams stay trains. Only
// what is held back or altered is copied, at most kHeldBytes of it in each direction; what would be more is dropped and
// counted as `overflowed`.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "switchagg/native/switch/line_port.h"
#include "switchagg/native/switch/relaxed_counter.h"

namespace switchagg {

struct FaultSettings {
  double loss = 0, duplicate = 0, reorder = 0, corrupt = 0;  // probabilities for each datagram, 0..1
  int64_t delay_ns = 0;   // of every datagram
  int64_t jitter_ns = 0;  // up to this much more, drawn for each datagram: neighbours may change places
  uint64_t seed = 0;
};

struct FaultCounters {
  RelaxedCounter lost, duplicated, reordered, delayed, corrupted, overflowed;
};

// One direction, without I/O: `now` is passed in, in nanoseconds of any steady clock.
class FaultLine {
 public:
  static constexpr bool kReleasesFirst = false;
  static constexpr int64_t kGrainNs = 0;

  FaultLine(const FaultSettings& settings, uint64_t direction);

  // Appends to `out` what leaves the line as this datagram enters it. Views are of the caller's bytes, or of the line's
  // own until recycle().
  void pass(const Received& datagram, int64_t now, std::vector<Received>& out);
  void release(int64_t now, std::vector<Received>& out);  // what was held and is due
  int64_t next_due() const;                               // kNever: nothing is held
  void recycle() { left_.clear(); }
  const FaultCounters& counters() const { return counters_; }

 private:
  using Bytes = std::vector<uint8_t>;
  struct Held {
    Bytes bytes;
    Endpoint peer;
    int64_t due;
    uint64_t order;
    uint32_t passes;  // until it goes, in the reordering stage
  };
  struct Later {
    bool operator()(const Held& a, const Held& b) const { return a.due != b.due ? a.due > b.due : a.order > b.order; }
  };

  bool draw(uint64_t threshold) { return random_() < threshold; }
  bool delays() const { return settings_.delay_ns > 0 || settings_.jitter_ns > 0; }
  bool hold(std::vector<Held>& in, const Received& datagram, int64_t due, uint32_t passes);
  int64_t due(int64_t now);
  void emit(const Received& datagram, int64_t now, std::vector<Received>& out);
  void emit(Held&& held, int64_t now, std::vector<Received>& out);
  void leave(Held&& held, std::vector<Received>& out);

  FaultSettings settings_;
  uint64_t loss_, duplicate_, reorder_, corrupt_;  // a draw below the threshold is a hit
  std::mt19937_64 random_;                         // fates
  std::mt19937_64 jitter_;                         // apart: the clock decides how often it is asked
  std::vector<Held> reordering_;                   // never more than a few
  std::vector<Held> delayed_;                      // a heap, the first due on top
  std::vector<Bytes> left_;                        // behind views that were handed out
  uint64_t held_bytes_ = 0, order_ = 0;
  FaultCounters counters_;
};

class FaultPort : public LinePort<FaultLine> {
 public:
  FaultPort(std::unique_ptr<Port> inner, const FaultSettings& settings)
      : LinePort(std::move(inner), [&](uint64_t direction) { return FaultLine(settings, direction); }) {}

  const FaultCounters& faults_in() const { return in().counters(); }
  const FaultCounters& faults_out() const { return out().counters(); }
};

inline constexpr uint64_t kHeldBytes = 32 << 20;         // in each direction
inline constexpr int64_t kLongestReorderNs = 300'000;    // a datagram held back for later ones goes by then at the latest

}  // namespace switchagg
