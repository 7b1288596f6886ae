#include "switchagg/native/switch/frame_tables.h"

namespace switchagg {

bool FrameTables::is_own_source(const FrameView& f) {
  for (OwnSourceEntry& e : own_source_) {
    if (e.source.matches(f.source) && e.ether_type.matches(f.ether_type) && e.tag_type.matches(f.tag_type) &&
        e.arp_sender.matches(f.arp_sender) && e.ip_source.matches(f.ip_source)) {
      ++e.packets;
      return true;
    }
  }
  return false;
}

LocalAction FrameTables::local(const FrameView& f) {
  for (LocalEntry& e : local_) {
    if (e.destination.matches(f.destination) && e.traffic.matches(static_cast<uint64_t>(f.traffic)) &&
        e.arp_target.matches(f.arp_target) && e.ip_destination.matches(f.ip_destination)) {
      ++e.packets;
      return e.action;
    }
  }
  return LocalAction::pass;
}

StationAction FrameTables::station(const FrameView& f) {
  const auto found = stations_.find(f.destination);
  if (found == stations_.end()) return default_station_;
  ++found->second.packets;
  return found->second.action;
}

std::unordered_map<uint64_t, uint64_t> FrameTables::entry_packets() const {
  std::unordered_map<uint64_t, uint64_t> all;
  for (const OwnSourceEntry& each : own_source_) all[each.id] = each.packets;
  for (const LocalEntry& each : local_) all[each.id] = each.packets;
  return all;
}

std::unordered_map<uint64_t, uint64_t> FrameTables::station_packets() const {
  std::unordered_map<uint64_t, uint64_t> all;
  for (const auto& [mac, station] : stations_) all[mac] = station.packets;
  return all;
}

}  // namespace switchagg
