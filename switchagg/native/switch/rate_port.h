// Links of a certain speed as a device: a Port round a Port on which every worker has a link of its own, each way, that
// carries so many bits a second and no more.
//
//      engine  <->  RatePort { RateLine in, RateLine out }  <->  inner port
//
//      of a link:   full?  ->  dropped           tokens?  ->  on at once           else  ->  queued until its last bit is out
//
// What a datagram costs is what it takes of an Ethernet link: its bytes and those of UDP, IPv4 and Ethernet, checksum,
// preamble and gap included. A link is a token bucket of kBurstNs: so much time that it stood idle may be made up for,
// since a switch that had no processor for a moment reads late what on a real link would have come in meanwhile. Over
// any longer time the rate is kept.
//
// When a datagram leaves is reckoned when it enters, so it does not matter how late a thread wakes up to let it go: late
// ones leave together, as a train, and the next ones no later for it. wait() sleeps until something is due, but makes no
// more than one timer's wake-up in RateLine::kGrainNs.
//
// Only what is queued is copied, whichever way it came, so links through shared memory have the same speed as sockets. A
// link's queue holds `queue_bytes` as they count on the wire; what finds it full is dropped and counted, as by a switch
// or a network card. A link is known by the worker's address and forgotten once it has been idle, when there are many.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "switchagg/native/switch/line_port.h"
#include "switchagg/native/switch/relaxed_counter.h"

namespace switchagg {

struct RateSettings {
  double bits_per_second = 0;  // positive
  uint64_t queue_bytes = 0;
  bool frames = false;  // what passes is Ethernet frames already, and a link is a port of the switch
};

struct RateCounters {
  RelaxedCounter packets, wire_bytes;  // that went through
  RelaxedCounter queued;               // of them, those that had to wait
  RelaxedCounter dropped;              // found the queue full
};

// What a UDP payload takes of an Ethernet link.
constexpr uint64_t wire_bytes_of(uint32_t payload) {
  constexpr uint64_t kUdpIp = 8 + 20, kEthernet = 14 + 4, kBetween = 8 + 12, kLeastFrame = 64;
  const uint64_t frame = kUdpIp + kEthernet + payload;
  return (frame < kLeastFrame ? kLeastFrame : frame) + kBetween;
}

constexpr uint64_t wire_bytes_of_frame(uint32_t frame) {
  constexpr uint32_t kCheck = 4, kBetween = 8 + 12, kLeastFrame = 64;
  return (frame + kCheck < kLeastFrame ? kLeastFrame : frame + kCheck) + kBetween;
}

// All links in one direction, without I/O: `now` is passed in, in nanoseconds of any steady clock, never going back.
class RateLine {
 public:
  static constexpr bool kReleasesFirst = true;
  static constexpr int64_t kGrainNs = 100'000;

  explicit RateLine(const RateSettings& settings) : settings_(settings) {}

  // Appends to `out` what leaves as this datagram enters its peer's link. Views are of the caller's bytes, or of the
  // line's own until recycle().
  void pass(const Received& datagram, int64_t now, std::vector<Received>& out);
  void release(int64_t now, std::vector<Received>& out);  // what was queued and is due, each link's together
  int64_t next_due() const;                               // kNever: nothing is queued
  void recycle();
  const RateCounters& counters() const { return counters_; }

 private:
  using Bytes = std::vector<uint8_t>;
  struct Queued {
    Bytes bytes;
    int64_t due;
  };
  struct Link {
    Endpoint peer;
    int64_t free_at;      // when it has carried all that was let in
    double part = 0;      // of a nanosecond after that
    uint64_t queued = 0;  // bytes on the wire of what is queued
    std::deque<Queued> queue;
  };

  uint64_t wire_bytes(uint32_t size) const {
    return settings_.frames ? wire_bytes_of_frame(size) : wire_bytes_of(size);
  }
  Link* link_of(Endpoint peer, int64_t now);
  Bytes copy_of(const Received& datagram);

  RateSettings settings_;
  std::unordered_map<uint64_t, Link> links_;  // pointers to its values stay good
  std::vector<Link*> waiting_;                // links with a queue
  std::vector<Bytes> left_, spare_;           // behind views that were handed out; to be used again
  uint64_t held_bytes_ = 0;
  int64_t look_after_ = 0;  // when to look again for links to forget
  RateCounters counters_;
};

class RatePort : public LinePort<RateLine> {
 public:
  RatePort(std::unique_ptr<Port> inner, const RateSettings& settings)
      : LinePort(std::move(inner), [&](int) { return RateLine(settings); }) {}

  const RateCounters& rate_in() const { return in().counters(); }
  const RateCounters& rate_out() const { return out().counters(); }
};

inline constexpr int64_t kBurstNs = 200'000;
inline constexpr size_t kMaxRatedLinks = 4096;                // in each direction
inline constexpr uint64_t kMaxQueuedBytes = uint64_t{1} << 28;  // of all links, in each direction

}  // namespace switchagg
