// A network in virtual time: hosts, a link between each two that talk, and faults that a seed determines.
//
//      send -> [lost | down | queue full | damaged] -> serialised, delayed -> [late | twice] -> inbox -> host.run()
//
// A fault has an id: link and number of the packet on it, or its place among the faults that come at a time. Whether a
// packet meets one depends on seed and id alone, so that a schedule can be run again with some of its faults only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "switchagg/native/shared/port.h"
#include "tests/native/simulation/random.h"

namespace simulation {

using namespace switchagg;

// The time, which only the simulation moves.
inline int64_t virtual_ns = 0;
inline int64_t virtual_now() { return virtual_ns; }

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1'000'000, kSecond = 1'000'000'000, kNever = INT64_MAX;

enum class Fault : uint8_t {
  lost, damaged, link_down, queue_full, inbox_full, reordered, twice, twice_late, former_job, while_stopped, foreign,
};
inline constexpr const char* kFaultNames[] = {
    "lost", "damaged", "link down", "queue full", "inbox full", "reordered", "twice", "twice, late", "of a former job",
    "receiver stopped", "foreign",
};
inline constexpr size_t kFaults = std::size(kFaultNames);

// A packet's state in the protocol, as its header tells it.
enum class State : uint8_t { first_or, first_sum, first_skip, again_words, again_skip, result_words, result_empty, answer };
inline constexpr const char* kStateNames[] = {
    "OR", "SUM", "SKIP", "repeat", "repeat of SKIP", "RESULT", "empty RESULT", "answer",
};
inline constexpr size_t kStates = std::size(kStateNames);
State state_of(std::span<const uint8_t> packet);

struct Conditions {
  int64_t delay = 0, jitter = 0, latency = 0;  // of a link; of a host until it looks at its inbox: up to `latency`
  double ns_per_byte = 0;
  int64_t queue = 0;   // longest wait before a link, ns
  uint32_t inbox = 0;  // packets
  double lost = 0, damaged = 0, reordered = 0, twice = 0, twice_late = 0;
  int64_t reordered_by = 0, late_by = 0;
  struct Outage {
    uint32_t one, other;
    int64_t from, to;
  };
  struct Stop {  // of a host's process
    uint32_t host;
    int64_t from, to;
  };
  struct Foreign {  // a packet that looks like the last one to this host, and is not
    uint32_t host;
    int64_t at;
    uint64_t drawn;
  };
  std::vector<Outage> outages;
  std::vector<Stop> stops;
  std::vector<Foreign> foreign;
};

// Counts of faults by the state of the packet that met one; [1]: between a leaf and the root.
using Cells = uint64_t[2][kStates][kFaults];

class Network;

constexpr uint16_t kPort = 1000;

class Host {
 public:
  virtual ~Host() = default;
  virtual void run() = 0;  // something is in the inbox, or it is time
  // True if a socket is bound to the port. Otherwise the sender of a packet hears that it was refused.
  virtual bool listens(uint16_t port) const { return port == kPort; }
  virtual void refused(uint16_t /*port*/) {}  // that it sent from

  Network* network = nullptr;
  uint32_t number = 0;
  bool is_switch = false;
  struct Packet {
    std::vector<uint8_t> bytes;
    Endpoint from;
    uint16_t to_port = 0;
    uint32_t incarnation = 0;  // of the worker that sent it or gets it, when it was sent
  };
  std::deque<Packet> inbox;
  int64_t wake_at = kNever;
  uint32_t incarnation = 0;
  Packet last;  // that came in
  int64_t stopped = 0;  // until then its process stands still
};

Endpoint endpoint_of(uint32_t host, uint16_t port = kPort);

// Memory of packets that hosts are done with, for further ones.
inline std::vector<std::vector<uint8_t>> spare_bytes;
inline std::vector<uint8_t> copy_of(std::span<const uint8_t> packet) {
  std::vector<uint8_t> bytes;
  if (!spare_bytes.empty()) {
    bytes = std::move(spare_bytes.back());
    spare_bytes.pop_back();
  }
  bytes.assign(packet.begin(), packet.end());
  return bytes;
}

class Network {
 public:
  Network(uint64_t seed, const Conditions& conditions, const std::set<uint64_t>* only);
  void add(Host& host);
  void start();  // once all hosts are there
  void wake(Host& host, int64_t at);
  void send(Host& from, Endpoint to, Segment segment, uint16_t from_port = kPort);
  void cut(uint32_t one, uint32_t other, bool down);  // their link, in both directions
  bool step();  // false: nothing will happen any more
  int64_t next_at() const { return events_.empty() ? kNever : events_.first().at; }
  int64_t stopped_until(const Host& host) const;

  const std::vector<uint64_t>& met() const { return met_; }  // ids of the faults so far
  uint64_t packets() const { return packets_; }
  uint64_t hash() const { return hash_; }  // of all packets that came in, with their times
  void record_in(FILE* timeline, FILE* capture);
  void note(const std::string& what);  // a line of the timeline

  Cells cells = {};

 private:
  enum class What : uint8_t { arrival, waking, foreign };
  struct Event {
    int64_t at;
    uint64_t order;
    uint32_t index;
    uint16_t host;
    What what;
    bool operator<(const Event& o) const { return (at < o.at) | ((at == o.at) & (order < o.order)); }
  };
  // The first one is at the root. Four children a node take half the levels of two.
  class Events {
   public:
    bool empty() const { return heap_.empty(); }
    const Event& first() const { return heap_.front(); }
    void push(const Event& event) {
      size_t at = heap_.size();
      heap_.push_back(event);
      for (; at && event < heap_[(at - 1) / 4]; at = (at - 1) / 4) heap_[at] = heap_[(at - 1) / 4];
      heap_[at] = event;
    }
    void pop() {
      const Event last = heap_.back();
      heap_.pop_back();
      const size_t size = heap_.size();
      size_t at = 0;
      for (size_t child = 1; child < size; child = 4 * at + 1) {
        size_t least = child;
        for (size_t other = child + 1; other < std::min(size, child + 4); ++other)
          least = heap_[other] < heap_[least] ? other : least;
        if (!(heap_[least] < last)) break;
        heap_[at] = heap_[least];
        at = least;
      }
      if (size) heap_[at] = last;
    }

   private:
    std::vector<Event> heap_;
  };
  struct Link {
    uint64_t sent = 0;
    int64_t free_at = 0;
  };
  void push(int64_t at, What what, uint32_t host, uint32_t index) {
    events_.push({at, order_++, index, static_cast<uint16_t>(host), what});
  }
  bool happens(uint64_t id) const { return !only_ || only_->contains(id); }
  void meets(uint64_t id, Fault fault, const Host& from, const Host& to, std::span<const uint8_t> packet);
  void arrive(Host& host, Host::Packet& packet);
  void arrive_later(int64_t at, const Host& to, Host::Packet packet);
  void make_foreign(const Conditions::Foreign& foreign);
  void capture(const Host& from, const Host& to, std::span<const uint8_t> packet);

  const uint64_t seed_;
  const Conditions& conditions_;
  const std::set<uint64_t>* const only_;
  std::vector<Host*> hosts_;
  std::vector<Link> links_;  // from x hosts + to
  Events events_;
  std::set<std::pair<uint32_t, uint32_t>> cut_;
  uint64_t order_ = 0, packets_ = 0, hash_ = 0;
  std::vector<Host::Packet> flying_;
  std::vector<uint32_t> free_;
  std::vector<uint64_t> met_;
  FILE* timeline_ = nullptr;
  FILE* capture_ = nullptr;
  int64_t started_ = 0;
};

std::string describe(std::span<const uint8_t> packet);

}  // namespace simulation
