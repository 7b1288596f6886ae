#include "switchagg/native/switch/ether_bindings.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {
namespace {

using Match = std::pair<uint64_t, uint64_t>;  // value and mask
using OwnSource = std::pair<uint64_t, std::array<Match, 5>>;
using Local = std::tuple<uint64_t, std::array<Match, 4>, uint8_t>;

Ternary to_ternary(const Match& match) { return {match.first & match.second, match.second}; }

StationAction to_action(uint8_t kind, uint16_t to) { return {static_cast<StationAction::Kind>(kind), to}; }

std::vector<uint8_t> to_vector(nb::bytes bytes) {
  const auto* data = static_cast<const uint8_t*>(bytes.data());
  return {data, data + bytes.size()};
}

nb::bytes to_bytes(const std::vector<uint8_t>& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

void open_ethernet(NativeSwitch& self, const std::vector<std::pair<uint16_t, std::string>>& interfaces, bool queues,
                   uint16_t udp_port, uint16_t controller_port, int receive_buffer, nb::handle rate, nb::handle faults,
                   int capture) {
  std::optional<RateSettings> speed;
  if (!rate.is_none()) speed = nb::cast<RateSettings>(rate);
  std::optional<FaultSettings> settings;
  if (!faults.is_none()) settings = nb::cast<FaultSettings>(faults);
  NativeSwitch::EthernetOptions options;
  for (const auto& [port, name] : interfaces) options.interfaces.push_back({port, name});
  options.queues = queues;
  options.udp_port = udp_port;
  options.controller_port = controller_port;
  options.receive_buffer = receive_buffer;
  self.open_ethernet(options, speed, settings, capture);
}

void set_own_source(NativeSwitch& self, const std::vector<OwnSource>& given) {
  std::vector<OwnSourceEntry> entries;
  for (const auto& [id, m] : given)
    entries.push_back({id, to_ternary(m[0]), to_ternary(m[1]), to_ternary(m[2]), to_ternary(m[3]), to_ternary(m[4])});
  without_gil([&] { self.ether().with_tables([&](FrameTables& t) { t.set_own_source(std::move(entries)); }); });
}

void set_local(NativeSwitch& self, const std::vector<Local>& given) {
  std::vector<LocalEntry> entries;
  for (const auto& [id, m, action] : given)
    entries.push_back({id, to_ternary(m[0]), to_ternary(m[1]), to_ternary(m[2]), to_ternary(m[3]),
                       static_cast<LocalAction>(action)});
  without_gil([&] { self.ether().with_tables([&](FrameTables& t) { t.set_local(std::move(entries)); }); });
}

// Calls `function` with the tables, without the GIL.
template <typename Function>
auto on_tables(NativeSwitch& self, Function&& function) {
  return without_gil([&] { return self.ether().with_tables(function); });
}

nb::dict by_id(const std::vector<std::pair<uint64_t, uint64_t>>& counts) {
  nb::dict found;
  for (const auto& [id, packets] : counts) found[nb::int_(id)] = packets;
  return found;
}

nb::dict ether_counters(NativeSwitch& self) {
  const EtherCounters c = without_gil([&] { return self.ether().ether_counters(); });
  nb::dict named;
  named["own_source"] = c.own_source;
  named["answered_arp"] = c.answered_arp;
  named["answered_echo"] = c.answered_echo;
  named["admitted"] = c.admitted;
  named["local_dropped"] = c.local_dropped;
  named["forwarded"] = c.forwarded;
  named["flooded"] = c.flooded;
  named["unknown"] = c.unknown;
  named["returned"] = c.returned;
  named["malformed"] = c.malformed;
  named["unaddressed"] = c.unaddressed;
  named["no_such_port"] = c.no_such_port;
  return named;
}

nb::list interface_counters(NativeSwitch& self) {
  nb::list all;
  const FramePort* frames = self.frames();
  for (size_t i = 0; frames && i < frames->size(); ++i) {
    const InterfaceCounters& t = frames->counters(i);
    nb::dict one;
    one["port"] = frames->name(i).port;
    one["name"] = frames->name(i).name;
    one["up"] = t.up.load();
    const std::pair<const char*, const RelaxedCounter*> counts[] = {
        {"packets_in", &t.packets_in}, {"bytes_in", &t.bytes_in},   {"packets_out", &t.packets_out},
        {"bytes_out", &t.bytes_out},   {"send_errors", &t.send_errors}, {"too_large", &t.too_large},
        {"missed", &t.missed},         {"split", &t.split},         {"refused", &t.refused},
        {"downs", &t.downs}};
    for (const auto& [name, count] : counts) one[name] = uint64_t{*count};
    all.append(one);
  }
  return all;
}

}  // namespace

void bind_ethernet(nb::class_<NativeSwitch>& native) {
  native.def("open_ethernet", &open_ethernet, "interfaces"_a, nb::kw_only(), "queues"_a, "udp_port"_a,
             "controller_port"_a, "receive_buffer"_a, "rate"_a.none(), "faults"_a.none(), "capture"_a)
      .def("add_placed_job",
           [](NativeSwitch& self, nb::handle job, const std::vector<std::pair<uint16_t, uint64_t>>& given) {
             const JobAdmission admission = to_admission(job);
             std::vector<NativeSwitch::Station> stations;
             for (const auto& [port, mac] : given) stations.push_back({port, mac});
             if (stations.size() != admission.workers.size() + (admission.parent ? 1 : 0))
               throw nb::value_error("expected a station for each worker, and for the parent");
             with_usage_errors([&] { without_gil([&] { self.add_job(admission, stations); }); });
           },
           "job"_a, "stations"_a)
      .def("feed",
           [](NativeSwitch& self, std::optional<uint16_t> port, nb::bytes frame) {
             Endpoint from;
             if (port) from.place = EtherPort::place_of(*port);
             std::vector<std::pair<uint16_t, nb::bytes>> out;
             for (const auto& [to, bytes] : self.feed(from, to_vector(frame)))
               out.emplace_back(static_cast<uint16_t>(to.place - 1), to_bytes(bytes));
             return out;
           },
           "port"_a.none(), "frame"_a)
      .def("send_frame",
           [](NativeSwitch& self, uint16_t port, nb::bytes frame) {
             const auto bytes = to_vector(frame);
             return without_gil([&] { return self.ether().send_frame(port, bytes); });
           },
           "port"_a, "frame"_a)
      .def("inject",
           [](NativeSwitch& self, nb::bytes frame) {
             const auto bytes = to_vector(frame);
             const EtherPort::Injected made = without_gil([&] { return self.ether().inject(bytes); });
             std::vector<nb::bytes> returned;
             for (const auto& each : made.returned) returned.push_back(to_bytes(each));
             return std::pair(made.admitted ? nb::object(to_bytes(*made.admitted)) : nb::object(nb::none()), returned);
           },
           "frame"_a)
      .def("set_own_source", &set_own_source, "entries"_a)
      .def("set_local", &set_local, "entries"_a)
      .def("set_station",
           [](NativeSwitch& self, uint64_t mac, uint8_t kind, uint16_t to) {
             on_tables(self, [&](FrameTables& t) { t.set_station(mac, to_action(kind, to)); });
           },
           "mac"_a, "kind"_a, "to"_a)
      .def("remove_station",
           [](NativeSwitch& self, uint64_t mac) { on_tables(self, [&](FrameTables& t) { t.remove_station(mac); }); },
           "mac"_a)
      .def("set_default_station",
           [](NativeSwitch& self, uint8_t kind, uint16_t to) {
             on_tables(self, [&](FrameTables& t) { t.set_default_station(to_action(kind, to)); });
           },
           "kind"_a, "to"_a)
      .def("set_group",
           [](NativeSwitch& self, uint16_t group, std::vector<uint16_t> ports) {
             on_tables(self, [&](FrameTables& t) { t.set_group(group, std::move(ports)); });
           },
           "group"_a, "ports"_a)
      .def("remove_group",
           [](NativeSwitch& self, uint16_t group) { on_tables(self, [&](FrameTables& t) { t.remove_group(group); }); },
           "group"_a)
      .def("set_arps",
           [](NativeSwitch& self, std::unordered_map<uint32_t, uint64_t> macs) {
             on_tables(self, [&](FrameTables& t) { t.set_arps(std::move(macs)); });
           },
           "macs"_a)
      .def("clear_frame_tables",
           [](NativeSwitch& self) { on_tables(self, [](FrameTables& t) { t.clear(); }); })
      .def("entry_packets",
           [](NativeSwitch& self) {
             return by_id(on_tables(self, [](const FrameTables& t) { return t.entry_packets(); }));
           })
      .def("station_packets",
           [](NativeSwitch& self) {
             return by_id(on_tables(self, [](const FrameTables& t) { return t.station_packets(); }));
           })
      .def("ether_counters", &ether_counters)
      .def("interface_counters", &interface_counters);
}

}  // namespace switchagg
