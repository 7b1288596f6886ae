// Links of a limited rate as a device: a Port around a Port on which every worker has a link of its own in each direction.
//
//      engine  <->  RatePort { RateLine in, RateLine out }  <->  inner port
//
//      of a link:   full?  ->  dropped           tokens?  ->  on at once           else  ->  queued until its last bit is out
//
// A datagram costs the bytes that it takes on an Ethernet link, with all headers, checksum, preamble and gap. A link is a
// token bucket of kBurstNs, because a switch that got no processor for a moment reads late what arrived meanwhile. Over
// longer times the rate is exact.
//
// The time at which a datagram leaves is computed when it enters, so a thread that wakes up late sends several at once and
// delays none after them. wait() has at most one timer wake-up in RateLine::kGrainNs.
//
// Only queued datagrams are copied, so the rate is the same for sockets and shared memory. A link's queue holds
// `queue_bytes`, counted as on the wire; a datagram that finds it full is dropped and counted, as in a real switch. One that
// finds more than `mark_bytes` is marked with CE, if it is ECT (a datagram's flags stand for its IP header, port.h). A link
// is identified by the worker's address. If there are many, idle ones are forgotten.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "switchagg/native/shared/frame.h"
#include "switchagg/native/shared/ip_address.h"
#include "switchagg/native/switch/line_port.h"
#include "switchagg/native/switch/concurrency.h"

namespace switchagg {

struct RateSettings {
  double bits_per_second = 0;  // positive
  uint64_t queue_bytes = 0;
  uint64_t mark_bytes = 0;  // ECT packets that find more in the queue are marked with CE; 0: none
  bool frames = false;  // datagrams are Ethernet frames, and a link is a port of the switch
};

struct RateCounters {
  RelaxedCounter packets, wire_bytes;  // that went through
  RelaxedCounter queued;               // of them, those that had to wait
  RelaxedCounter marked;               // of these, with CE
  RelaxedCounter dropped;              // found the queue full
};

// All links in one direction, without I/O. `now` is in nanoseconds of any steady clock.
class RateLine {
 public:
  static constexpr bool kReleasesFirst = true;
  static constexpr int64_t kGrainNs = 100'000;

  explicit RateLine(const RateSettings& settings) : settings_(settings) {}

  // Appends to `out` what leaves as this datagram enters its peer's link. Views are of the caller's bytes, or of the
  // line's own until recycle().
  void pass(const Received& datagram, int64_t now, std::vector<Received>& out);
  void release(int64_t now, std::vector<Received>& out);  // queued datagrams that are due, by link
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

  // Bytes that a frame, or a UDP payload of this size, takes on an Ethernet link.
  uint64_t wire_bytes(uint32_t size, Endpoint peer) const {
    constexpr uint64_t kCheck = 4, kBetween = 8 + 12, kLeastFrame = 64;
    const uint64_t headers = kEthernetBytes + (is_ipv6(peer.ip) ? kIpv6Bytes : kIpv4Bytes) + kUdpBytes;
    return std::max(size + (settings_.frames ? 0 : headers) + kCheck, kLeastFrame) + kBetween;
  }
  Link* link_of(Endpoint peer, int64_t now);
  Bytes copy_of(const Received& datagram);
  bool mark(Bytes& bytes) const;

  RateSettings settings_;
  std::unordered_map<uint64_t, Link> links_;  // pointers to its values stay good
  std::vector<Link*> waiting_;                // links with a queue
  std::vector<Bytes> left_, spare_;           // behind views that were handed out; to be used again
  uint64_t held_bytes_ = 0;
  int64_t look_after_ = 0;  // before that time no link is forgotten
  RateCounters counters_;
};

class RatePort : public LinePort<RateLine> {
 public:
  RatePort(std::unique_ptr<Port> inner, const RateSettings& settings)
      : LinePort(std::move(inner), [&](int) { return RateLine(settings); }) {}
};

inline constexpr int64_t kBurstNs = 200'000;
inline constexpr size_t kMaxRatedLinks = 4096;                // in each direction
inline constexpr uint64_t kMaxQueuedBytes = uint64_t{1} << 28;  // of all links, in each direction

}  // namespace switchagg
