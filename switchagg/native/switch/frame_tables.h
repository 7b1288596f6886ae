// The tables that an Ethernet switch applies to frames: those of p4/include/ethernet.p4, and `arps` of rewrite.p4, with the
// counters of their entries. No I/O.
//
//      own_source  -> a hit is dropped: it claims to come from the switch itself
//      local       -> an ARP or echo request is answered, a packet of the protocol admitted, other things dropped
//      stations    -> everything else: by one port, or flooded to a group
//
// The writer of an entry chooses its id. A table that is set again keeps the counters of the ids that it still has.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "switchagg/native/shared/frame.h"

namespace switchagg {

struct Ternary {
  uint64_t value = 0, mask = 0;
  bool matches(uint64_t field) const { return (field & mask) == value; }
};

enum class LocalAction : uint8_t { pass, answer_arp, answer_echo, admit, drop };

template <size_t kKeys>
struct TernaryEntry {
  uint64_t id = 0;
  std::array<Ternary, kKeys> keys;
  LocalAction action = LocalAction::drop;
  uint64_t packets = 0;
};
using OwnSourceEntry = TernaryEntry<5>;  // source, EtherType, type behind the tag, ARP sender, IPv4 source
using LocalEntry = TernaryEntry<4>;      // destination, traffic, ARP target, IPv4 destination

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
  bool is_own_source(const FrameView& f) {
    return hit(own_source_, {f.source, f.ether_type, f.tag_type, f.arp_sender, f.ip_source});
  }
  LocalAction local(const FrameView& f) {
    const auto* entry = hit(local_, {f.destination, static_cast<uint64_t>(f.traffic), f.arp_target, f.ip_destination});
    return entry ? entry->action : LocalAction::pass;
  }
  StationAction station(const FrameView& f) {
    const auto found = stations_.find(f.destination);
    if (found == stations_.end()) return default_station_;
    ++found->second.packets;
    return found->second.action;
  }

  const std::vector<uint16_t>* group(uint16_t number) const { return find(groups_, number); }
  const uint64_t* arp(uint32_t ip) const { return find(arps_, ip); }
  std::unordered_map<uint64_t, uint64_t> entry_packets() const {  // by id
    std::unordered_map<uint64_t, uint64_t> all;
    for (const OwnSourceEntry& each : own_source_) all[each.id] = each.packets;
    for (const LocalEntry& each : local_) all[each.id] = each.packets;
    return all;
  }
  std::unordered_map<uint64_t, uint64_t> station_packets() const {  // by MAC
    std::unordered_map<uint64_t, uint64_t> all;
    for (const auto& [mac, station] : stations_) all[mac] = station.packets;
    return all;
  }

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
  template <size_t kKeys>
  static const TernaryEntry<kKeys>* hit(std::vector<TernaryEntry<kKeys>>& table, const std::array<uint64_t, kKeys>& fields) {
    for (TernaryEntry<kKeys>& each : table) {
      size_t key = 0;
      while (key < kKeys && each.keys[key].matches(fields[key])) ++key;
      if (key < kKeys) continue;
      ++each.packets;
      return &each;
    }
    return nullptr;
  }
  template <typename Key, typename Value>
  static const Value* find(const std::unordered_map<Key, Value>& map, Key key) {
    const auto found = map.find(key);
    return found == map.end() ? nullptr : &found->second;
  }

  std::vector<OwnSourceEntry> own_source_;
  std::vector<LocalEntry> local_;
  std::unordered_map<uint64_t, Station> stations_;
  StationAction default_station_;
  std::unordered_map<uint16_t, std::vector<uint16_t>> groups_;
  std::unordered_map<uint32_t, uint64_t> arps_;
};

}  // namespace switchagg
