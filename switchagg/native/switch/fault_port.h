// Faults as a device: a Port around a Port that loses, duplicates, reorders, delays and corrupts datagrams, in both
// directions.
//
//      engine  <->  FaultPort { FaultLine in, FaultLine out }  <->  inner port
//
// A line does this with each datagram, in this order:
//
//      lost?  ->  one bit flipped?  ->  sent twice?  ->  held back until 1..8 later ones have passed?  ->  delayed
//
// Each direction has its own generator and draws a fixed number of times for each datagram. So one seed gives the same
// faults for the same sequence of datagrams, however they are batched. Only the order of datagrams that were held back
// until their time ran out depends on the clock.
//
// The kernel computes and checks the checksums of IP and UDP below this device, so they do not catch a flipped bit as they
// would in a network. Corruption shows what a switch does with damaged headers; sums become wrong.
//
// A datagram that is not changed is passed on as a view of the caller's bytes, so that trains stay trains. Those that are
// held back or changed are copied, at most kHeldBytes in each direction; more are dropped and counted as `overflowed`.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "switchagg/native/switch/line_port.h"
#include "switchagg/native/switch/concurrency.h"

namespace switchagg {

struct FaultSettings {
  double loss = 0, duplicate = 0, reorder = 0, corrupt = 0;  // probabilities for each datagram, 0..1
  int64_t delay_ns = 0;   // of every datagram
  int64_t jitter_ns = 0;  // up to this much more, drawn for each datagram, so that datagrams may overtake others
  uint64_t seed = 0;
};

struct FaultCounters {
  RelaxedCounter lost, duplicated, reordered, delayed, corrupted, overflowed;
};

// One direction, without I/O. `now` is in nanoseconds of any steady clock.
class FaultLine {
 public:
  static constexpr bool kReleasesFirst = false;
  static constexpr int64_t kGrainNs = 0;

  FaultLine(const FaultSettings& settings, uint64_t direction);

  // Appends to `out` the datagrams that leave as this one enters. Views are of the caller's bytes, or of the line's own
  // until recycle().
  void pass(const Received& datagram, int64_t now, std::vector<Received>& out);
  void release(int64_t now, std::vector<Received>& out);  // held datagrams that are due
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
  std::mt19937_64 jitter_;                         // separate: the clock decides how often it draws
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
};

inline constexpr uint64_t kHeldBytes = 32 << 20;         // in each direction
inline constexpr int64_t kLongestReorderNs = 300'000;    // a datagram held back for later ones goes by then at the latest

}  // namespace switchagg
