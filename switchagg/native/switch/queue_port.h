// A Port between two queues in this process: for tests, which put packets in and take out what comes of them.
#pragma once

#include <utility>
#include <vector>

#include "switchagg/native/shared/port.h"

namespace switchagg {

class QueuePort : public Port {
 public:
  using Packet = std::pair<Endpoint, std::vector<uint8_t>>;

  void put(Endpoint from, std::vector<uint8_t> packet) { waiting_.emplace_back(from, std::move(packet)); }
  std::vector<Packet> taken() { return std::exchange(sent_, {}); }

  bool wait(int64_t) override { return true; }
  void receive(std::vector<Received>& into) override {
    shown_ = std::exchange(waiting_, {});
    for (const auto& [from, packet] : shown_)
      into.push_back(Received::whole(packet.data(), static_cast<uint32_t>(packet.size()), from));
  }
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override {
    for (const Endpoint& peer : to)
      for (const Segment& each : segments)
        sent_.emplace_back(peer, std::vector<uint8_t>(each.data, each.data + each.size));
  }
  void wake() override {}
  Endpoint local() const override { return {}; }
  const PortCounters& counters() const override { return counters_; }

 private:
  std::vector<Packet> waiting_, shown_, sent_;
  PortCounters counters_;
};

}  // namespace switchagg
