// The tables that an Ethernet switch applies to frames: those of p4/include/frames.p4, and `arps` of rewrite.p4, with the
// counters of their entries. No I/O.
//
//      own_source  -> a hit is dropped: it claims to come from the switch itself
//      local       -> an ARP or echo request is answered, a packet of the protocol admitted, other things dropped
//      stations    -> everything else: by one port, or flooded to a group
//
// The writer of an entry chooses its id. A table that is set again keeps the counters of the ids that it still has.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "switchagg/native/switch/frame.h"

namespace switchagg {

struct Ternary {
  uint64_t value = 0, mask = 0;
  bool matches(uint64_t field) const { return (field & mask) == value; }
};

struct OwnSourceEntry {
  uint64_t id = 0;
  Ternary source, ether_type, tag_type, arp_sender, ip_source;
  uint64_t packets = 0;
};

enum class LocalAction : uint8_t { pass, answer_arp, answer_echo, admit, drop };

struct LocalEntry {
  uint64_t id = 0;
  Ternary destination, traffic, arp_target, ip_destination;
  LocalAction action = LocalAction::drop;
  uint64_t packets = 0;
};

struct StationAction {
  enum Kind : uint8_t { drop, forward, flood } kind = drop;
  uint16_t to = 0;  // a port, or a group
};

class FrameTables {
 public:
  // In order of priority, the highest first.
  void set_own_source(std::vector<OwnSourceEntry> entries) { replace(own_source_, std::move(entries)); }
  void set_local(std::vector<LocalEntry> entries) { replace(local_, std::move(entries)); }
  void set_station(uint64_t mac, StationAction action) { stations_[mac].action = action; }  // keeps its count
  void remove_station(uint64_t mac) { stations_.erase(mac); }
  void set_default_station(StationAction action) { default_station_ = action; }
  void set_group(uint16_t group, std::vector<uint16_t> ports) { groups_[group] = std::move(ports); }
  void remove_group(uint16_t group) { groups_.erase(group); }
  void set_arps(std::unordered_map<uint32_t, uint64_t> macs) { arps_ = std::move(macs); }
  void clear() { *this = FrameTables(); }

  // Lookups; each increments the counter of the entry that it hits.
  bool is_own_source(const FrameView& frame);
  LocalAction local(const FrameView& frame);
  StationAction station(const FrameView& frame);

  const std::vector<uint16_t>* group(uint16_t number) const {
    const auto found = groups_.find(number);
    return found == groups_.end() ? nullptr : &found->second;
  }
  const uint64_t* arp(uint32_t ip) const {
    const auto found = arps_.find(ip);
    return found == arps_.end() ? nullptr : &found->second;
  }
  std::unordered_map<uint64_t, uint64_t> entry_packets() const;    // by id
  std::unordered_map<uint64_t, uint64_t> station_packets() const;  // by MAC

 private:
  struct Station {
    StationAction action;
    uint64_t packets = 0;
  };

  template <typename Entry>
  static void replace(std::vector<Entry>& table, std::vector<Entry> entries) {
    std::unordered_map<uint64_t, uint64_t> counts;
    for (const Entry& each : table) counts[each.id] = each.packets;
    for (Entry& each : entries) each.packets = counts[each.id];
    table = std::move(entries);
  }

  std::vector<OwnSourceEntry> own_source_;
  std::vector<LocalEntry> local_;
  std::unordered_map<uint64_t, Station> stations_;
  StationAction default_station_;
  std::unordered_map<uint16_t, std::vector<uint16_t>> groups_;
  std::unordered_map<uint32_t, uint64_t> arps_;
};

}  // namespace switchagg
