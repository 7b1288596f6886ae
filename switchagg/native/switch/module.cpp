// Python bindings: the slot table, and the switch that serves it on a UDP socket or between Ethernet interfaces.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "switchagg/native/shared/kernel_choice.h"
#include "switchagg/native/switch/native_switch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {

Endpoint to_endpoint(const Address& address) {
  const std::optional<uint32_t> ip = ip_of(address.first);
  if (!ip) raise_usage_error(("'" + address.first + "' is no IPv4 or IPv6 address of a host").c_str());
  return {*ip, address.second};
}

void raise_usage_error(const char* message) {
  PyErr_SetString(nb::module_::import_("switchagg.errors").attr("UsageError").ptr(), message);
  throw nb::python_error();
}

namespace {

// Calls `function`; a std::invalid_argument becomes a UsageError.
template <typename Function>
decltype(auto) with_usage_errors(Function&& function) {
  try {
    return function();
  } catch (const std::invalid_argument& error) {
    raise_usage_error(error.what());
  }
}

// An id or index that a caller gave; throws std::invalid_argument if it is out of range.
template <typename To>
To narrow(const char* name, int64_t value) {
  if (value < 0 || value > std::numeric_limits<To>::max())
    throw std::invalid_argument("there is no " + std::string(name) + " " + std::to_string(value));
  return static_cast<To>(value);
}

// Calls `function` with the slot table; of a switch, without the GIL, with all of its tables as one.
template <typename Function>
auto with_table(SlotTable& self, Function&& function) {
  return function(self);
}
template <typename Function>
auto with_table(NativeSwitch& self, Function&& function) {
  return without_gil([&] { return function(self.loops()); });
}

// Calls `function` with the slot table and a job id that was checked.
template <typename Self, typename Function>
auto on_job(Self& self, int64_t job_id, Function&& function) {
  return with_usage_errors([&] {
    const auto job = narrow<uint16_t>("job", job_id);
    return with_table(self, [&](auto& table) { return function(table, job); });
  });
}

Address to_address(Endpoint endpoint) { return {text_of(endpoint.ip), endpoint.port}; }

Address address_of(nb::handle owner) {
  return {nb::cast<std::string>(owner.attr("ip")), nb::cast<uint16_t>(owner.attr("port"))};
}

// From a switchagg.rules.slots.JobEntry, which has checked its values. Raises TypeError for anything else.
JobAdmission to_admission(nb::handle entry) {
  if (!nb::isinstance(entry, nb::module_::import_("switchagg.rules.slots").attr("JobEntry")))
    throw nb::type_error("expected a switchagg.rules.slots.JobEntry");
  const auto number = [](nb::handle from, const char* name) { return nb::cast<uint32_t>(from.attr(name)); };
  JobAdmission job;
  job.job = nb::cast<uint16_t>(entry.attr("job"));
  job.base = number(entry, "base");
  job.slots = number(entry, "slots");
  job.words = number(entry, "words");
  job.result_token = number(entry, "result_token");
  job.touch = nb::cast<bool>(entry.attr("touch"));
  job.shared = nb::cast<bool>(entry.attr("shared"));
  for (nb::handle worker : entry.attr("workers"))
    job.workers.push_back({to_endpoint(address_of(worker)), number(worker, "bit"), number(worker, "token")});
  const nb::object parent = entry.attr("parent");
  if (!parent.is_none())
    job.parent = {to_endpoint(address_of(parent)), number(parent, "token"), number(parent, "base"),
                  number(parent, "result_token")};
  return job;
}

using Named = std::initializer_list<std::pair<const char*, uint64_t>>;

nb::dict to_dict(Named counts, nb::dict by_name = {}) {
  for (const auto& [name, count] : counts) by_name[name] = count;
  return by_name;
}

nb::dict to_dict(const Counters& counters) {
  nb::dict by_name;
  for (size_t i = 0; i < counters.size(); ++i) by_name[wire::kCounterNames[i]] = counters[i];
  return by_name;
}

nb::dict to_dict(const JobReport& report) {
  nb::dict by_name = to_dict(report.counters);
  for (const auto& [bit, worker] : report.workers)
    by_name[("worker_" + std::to_string(bit) + "_packets").c_str()] = worker.packets;
  return by_name;
}

nb::object to_outcomes(const JobReport& report) {
  const nb::module_ module = nb::module_::import_("switchagg.emulator.outcomes");
  nb::dict workers;
  for (const auto& [bit, worker] : report.workers)
    workers[nb::int_(bit)] = module.attr("WorkerOutcomes")(worker.packets, worker.retransmissions, worker.misplaced,
                                                           worker.outside, worker.token, worker.delivered);
  nb::list outcomes;
  for (uint64_t each : report.job.outcomes) outcomes.append(each);
  return module.attr("JobOutcomes")(nb::tuple(outcomes), report.job.source, report.job.length, report.job.outside,
                                    workers, report.job.delivered);
}

// A slot with words of its own, taken under the lock.
struct SlotCopy {
  SlotTable::SlotView view;
  std::vector<uint8_t> words;

  explicit SlotCopy(const SlotTable::SlotView& slot) : view(slot), words(slot.words.begin(), slot.words.end()) {}
  nb::object to_python() const {
    nb::object array = nb::none();
    if (view.filled) {
      const size_t count = words.size() / 4;
      auto* host = new uint32_t[count];
      nb::capsule owner(host, [](void* memory) noexcept { delete[] static_cast<uint32_t*>(memory); });
      for (size_t i = 0; i < count; ++i) host[i] = wire::load32(words.data() + 4 * i);
      array = nb::cast(nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>(host, {count}, owner));
    }
    return nb::module_::import_("switchagg.rules.slots").attr("SlotState")(view.seq, view.seen, view.filled, array);
  }
};

// The methods that a slot table and a switch have in common.
template <typename Self>
void bind_table(nb::class_<Self>& bound) {
  bound
      .def("add_job",
           [](Self& self, nb::handle job) {
             const JobAdmission admission = to_admission(job);
             with_usage_errors([&] { with_table(self, [&](auto& table) { table.add_job(admission); }); });
           },
           "job"_a)
      .def("fence",
           [](Self& self, int64_t job, uint32_t bits) {
             on_job(self, job, [&](auto& table, uint16_t id) { table.fence(id, bits); });
           },
           "job_id"_a, "bits"_a)
      .def("admit",
           [](Self& self, int64_t job, uint32_t bits) {
             on_job(self, job, [&](auto& table, uint16_t id) { table.admit(id, bits); });
           },
           "job_id"_a, "bits"_a)
      .def("counters",
           [](Self& self) { return to_dict(with_table(self, [](auto& table) { return table.counters(); })); })
      .def("job_counters",
           [](Self& self, int64_t job) {
             return to_dict(on_job(self, job, [](auto& table, uint16_t id) { return table.report(id); }));
           },
           "job_id"_a)
      .def("outcome_counters",
           [](Self& self, int64_t job) {
             return to_outcomes(on_job(self, job, [](auto& table, uint16_t id) { return table.report(id); }));
           },
           "job_id"_a)
      .def("unknown_job_counters",
           [](Self& self) {
             return to_dict(with_table(self, [](auto& table) { return table.unknown_job_counters(); }));
           })
      .def("slot",
           [](Self& self, int64_t index) {
             const SlotCopy copy = with_usage_errors([&] {
               const auto slot = narrow<uint32_t>("slot", index);
               return with_table(self, [&](auto& table) { return table.with_slot(slot, [](const auto& view) { return SlotCopy(view); }); });
             });
             return copy.to_python();
           },
           "index"_a);
}

// ---------------------------------------------------------------------------------------------- the slot table alone

using Out = std::pair<std::optional<Address>, nb::bytes>;
using Packet = std::pair<nb::bytes, std::optional<Address>>;

nb::bytes to_bytes(Segment segment) { return nb::bytes(segment.data, segment.size); }

const uint8_t* data_of(const nb::bytes& bytes) { return static_cast<const uint8_t*>(bytes.data()); }

Received received(const nb::bytes& packet, Endpoint source) {
  return Received::whole(data_of(packet), static_cast<uint32_t>(packet.size()), source);
}

Verdict process(SlotTable& table, const nb::bytes& packet, const std::optional<Address>& source) {
  return table.process(received(packet, source ? to_endpoint(*source) : Endpoint{}), !source);
}

void append(std::vector<Out>& outs, const SlotTable& table, const Verdict& verdict, const nb::bytes& packet) {
  std::vector<uint8_t> scratch(wire::kMaxPacketBytes);
  const auto send = [&](std::span<const Endpoint> to, Segment segment) {
    for (Endpoint each : to) outs.emplace_back(to_address(each), to_bytes(segment));
  };
  switch (verdict.action) {
    case Action::none:
    case Action::flush:
    case Action::stray:
      return;
    case Action::multicast: {
      const Segment full = table.result(verdict.job_index, verdict.slot);
      if (verdict.reader == 0) return send(table.audience(verdict.job_index), full);
      table.bare(verdict.job_index, verdict.slot, scratch.data());
      const std::optional<Endpoint> reader = table.worker(verdict.job_index, verdict.reader - 1u);
      for (const Endpoint& each : table.workers(verdict.job_index))
        send({&each, 1}, reader == each ? full : Segment{scratch.data(), wire::kHeaderBytes});
      return;
    }
    case Action::deliver: {
      const Segment down = table.delivered(verdict, received(packet, {}), scratch.data());
      return send(verdict.reply ? std::span(&verdict.to, 1) : table.workers(verdict.job_index), down);
    }
    case Action::unicast:
      return send({&verdict.to, 1}, verdict.as_stored() ? table.result(verdict.job_index, verdict.slot)
                                                        : table.result_with_reply(verdict, scratch.data()));
    case Action::to_controller:
      outs.emplace_back(std::nullopt, packet);
  }
}

// Of one of several tables: what it sends, or the number of the table that has the packet's slot.
std::pair<std::vector<Out>, std::optional<uint32_t>> receive_or_shard(SlotTable& table, const nb::bytes& packet,
                                                                      const std::optional<Address>& source) {
  const Verdict verdict = process(table, packet, source);
  if (verdict.action == Action::stray) return {{}, verdict.shard};
  std::vector<Out> outs;
  append(outs, table, verdict, packet);
  table.flushed();
  return {std::move(outs), std::nullopt};
}

std::vector<Out> receive(SlotTable& table, const nb::bytes& packet, const std::optional<Address>& source) {
  std::vector<Out> outs;
  append(outs, table, process(table, packet, source), packet);
  table.flushed();  // the results were copied, so no packet has to wait for a flush
  return outs;
}

// Reads results late, from the slots' own memory, as the packet loop does.
std::pair<std::vector<Out>, uint32_t> receive_batch(SlotTable& table, const std::vector<Packet>& packets) {
  std::vector<Out> outs;
  std::vector<std::pair<Verdict, nb::bytes>> outstanding;
  uint32_t flushes = 0;
  const auto flush = [&] {
    for (const auto& [verdict, packet] : outstanding) append(outs, table, verdict, packet);
    outstanding.clear();
    table.flushed();
  };
  for (const auto& [packet, source] : packets) {
    Verdict verdict = process(table, packet, source);
    if (verdict.action == Action::flush) {
      flush();
      ++flushes;
      verdict = process(table, packet, source);
    }
    outstanding.emplace_back(verdict, packet);
  }
  flush();
  return {std::move(outs), flushes};
}

// For tests that compare C++ with the Python definitions, and the instruction sets with each other.

std::vector<std::string> kernel_levels() { return {kKernelLevels, kKernelLevels + runnable_levels()}; }

nb::bytes run_kernel(const std::string& level, const std::string& kernel, nb::bytes to, nb::bytes from) {
  static constexpr const SlotKernels* sets[] = KERNEL_SETS(slot_kernels);
  const size_t index = static_cast<size_t>(std::find(kKernelLevels, std::end(kKernelLevels), level) - kKernelLevels);
  if (index >= runnable_levels()) throw nb::value_error("no such level here");
  if (to.size() != from.size() || to.size() % 4) throw nb::value_error("expected two runs of equally many words");
  const SlotKernels& kernels = *sets[index];
  std::string result(to.c_str(), to.size());
  if (kernel == "add_all" || kernel == "or_all") {
    const uint8_t* const both[] = {data_of(from), reinterpret_cast<const uint8_t*>(result.data()), data_of(from)};
    (kernel == "add_all" ? kernels.add_all : kernels.or_all)(reinterpret_cast<uint8_t*>(result.data()), both, 3,
                                                              to.size() / 4);
    return nb::bytes(result.data(), result.size());
  }
  const WordKernel run = kernel == "copy" ? kernels.copy : kernel == "add" ? kernels.add : kernels.or_words;
  run(reinterpret_cast<uint8_t*>(result.data()), data_of(from), to.size() / 4);
  return nb::bytes(result.data(), result.size());
}

wire::Header header_of(const nb::bytes& data) {
  if (data.size() < wire::kHeaderBytes) throw nb::value_error("shorter than a header");
  return wire::Header::parse(data_of(data));
}

void bind_slot_table(nb::module_& module) {
  nb::class_<SlotTable> table(module, "SlotTable");
  bind_table(table);
  table
      .def("__init__",
           [](SlotTable* self, int64_t capacity, uint32_t shard, uint32_t shards) {
             with_usage_errors([&] { new (self) SlotTable(narrow<uint32_t>("capacity of", capacity), {shard, shards}); });
           },
           "capacity"_a, "shard"_a = 0, "shards"_a = 1)
      .def("owner", [](SlotTable& self, int64_t index) {
             return with_usage_errors([&] { return self.owner(narrow<uint32_t>("slot", index)); });
           },
           "index"_a)
      .def("receive_or_shard", &receive_or_shard, "payload"_a, "source"_a.none())
      .def("remove_job",
           [](SlotTable& self, int64_t job) {
             on_job(self, job, [](auto& table, uint16_t id) { table.remove_job(id); });
           },
           "job_id"_a)
      .def("receive", &receive, "payload"_a, "source"_a.none())
      .def("receive_batch", &receive_batch, "packets"_a);
  module.def(
      "parse_header",
      [](nb::bytes data) {
        const wire::Header h = header_of(data);
        return to_dict({{"version", h.version}, {"op", h.op}, {"flags", h.flags}, {"job", h.job}, {"token", h.token},
                        {"seq", h.seq}, {"slot", h.slot}, {"reply", h.reply}});
      },
      "data"_a);
  module.def(
      "rewrite_header",
      [](nb::bytes data) {
        uint8_t written[wire::kHeaderBytes];
        header_of(data).write(written);
        return nb::bytes(written, sizeof written);
      },
      "data"_a);
  module.def("kernel_levels", &kernel_levels);
  module.def("run_kernel", &run_kernel, "level"_a, "kernel"_a, "to"_a, "source"_a);
}

// ---------------------------------------------------------------------------------------------------------- the switch

nb::dict port_counters(NativeSwitch& self) {
  const PortCounters c = without_gil([&] { return self.loops().port_counters(); });
  return to_dict({{"packets_in", c.packets_in}, {"bytes_in", c.bytes_in}, {"packets_out", c.packets_out},
                  {"bytes_out", c.bytes_out}, {"receive_calls", c.receive_calls}, {"send_calls", c.send_calls},
                  {"refused", c.refused}, {"send_errors", c.send_errors}});
}

// Packets that the kernel gave to another thread than their slot's; empty with one thread.
nb::dict stray_counters(NativeSwitch& self) {
  if (self.loops().size() == 1) return {};
  const Shards::Strays c = self.loops().strays();
  return to_dict({{"strays", c.packets}, {"strays_dropped", c.dropped}});
}

// Counters of a device's two lines, with _in and _out; empty without the device.
template <typename Device, typename Counters>
nb::dict line_counters(const Device* device, const std::vector<std::pair<std::string, RelaxedCounter Counters::*>>& fields) {
  nb::dict by_name;
  if (!device) return by_name;
  for (const auto& [name, field] : fields) by_name[(name + "_in").c_str()] = uint64_t{device->in().counters().*field};
  for (const auto& [name, field] : fields) by_name[(name + "_out").c_str()] = uint64_t{device->out().counters().*field};
  return by_name;
}

nb::dict fault_counters(NativeSwitch& self) {
  using C = FaultCounters;
  return line_counters<FaultPort, C>(self.faults(), {{"lost", &C::lost}, {"corrupted", &C::corrupted},
                                                     {"duplicated", &C::duplicated}, {"reordered", &C::reordered},
                                                     {"delayed", &C::delayed}, {"overflowed", &C::overflowed}});
}

nb::dict rate_counters(NativeSwitch& self) {
  using C = RateCounters;
  return line_counters<RatePort, C>(self.rate(), {{"packets", &C::packets}, {"wire_bytes", &C::wire_bytes},
                                                  {"queued", &C::queued}, {"marked", &C::marked}, {"dropped", &C::dropped}});
}

nb::dict capture_counters(NativeSwitch& self) {
  nb::dict by_name;
  if (!self.capture()) return by_name;
  by_name["captured"] = self.capture()->captured();
  by_name["missing"] = self.capture()->missing();
  by_name["error"] = self.capture()->error();
  return by_name;
}

nb::dict ether_counters(NativeSwitch& self) {
  const EtherCounters c = without_gil([&] { return self.ether().ether_counters(); });
  return to_dict({{"own_source", c.own_source}, {"answered_arp", c.answered_arp}, {"answered_echo", c.answered_echo},
                  {"admitted", c.admitted}, {"local_dropped", c.local_dropped}, {"forwarded", c.forwarded},
                  {"flooded", c.flooded}, {"unknown", c.unknown}, {"returned", c.returned},
                  {"malformed", c.malformed}, {"unaddressed", c.unaddressed}, {"no_such_port", c.no_such_port}});
}

// Datagrams that a device dropped; empty on a socket of the kernel.
nb::dict host_counters(NativeSwitch& self) {
  FrameHost::Hosts hosts = self.hosts();
  if (hosts.empty()) return {};
  HostCounters c;
  without_gil([&] {
    for (const auto& host : hosts) c += host->counters();
    hosts.clear();  // here, as they may have no other owner by now
  });
  return to_dict({{"malformed", c.malformed}, {"unaddressed", c.unaddressed}, {"not_open", c.not_open}, {"too_large", c.too_large},
                  {"no_room", c.no_room}});
}

nb::list interface_counters(NativeSwitch& self) {
  nb::list all;
  const FramePort* frames = self.frames();
  for (size_t i = 0; frames && i < frames->size(); ++i) {
    const InterfaceCounters& c = frames->counters(i);
    nb::dict one;
    one["port"] = frames->name(i).port;
    one["name"] = frames->name(i).name;
    one["up"] = c.up.load();
    all.append(to_dict({{"packets_in", c.packets_in}, {"bytes_in", c.bytes_in}, {"packets_out", c.packets_out},
                        {"bytes_out", c.bytes_out}, {"send_errors", c.send_errors}, {"too_large", c.too_large},
                        {"missed", c.missed}, {"split", c.split}, {"refused", c.refused}, {"downs", c.downs}}, one));
  }
  return all;
}

void bind_switch(nb::class_<NativeSwitch>& bound) {
  bind_table(bound);
  bound
      .def("__init__",
           [](NativeSwitch* self, int64_t capacity, int64_t threads) {
             with_usage_errors([&] {
               new (self) NativeSwitch(narrow<uint32_t>("capacity of", capacity), narrow<uint32_t>("number of threads", threads));
             });
           },
           "capacity"_a, "threads"_a = 1)
      .def("open", &NativeSwitch::open, "address"_a, nb::kw_only(), "receive_buffer"_a, "offload"_a, "rate"_a.none(),
           "faults"_a.none(), "capture"_a, "links"_a)
      .def("use_xdp", &NativeSwitch::use_xdp, "address"_a)
      .def(
          "use_dpdk",
          [](NativeSwitch& self, const std::string& address, const std::vector<std::vector<int64_t>>& ports, uint32_t mtu,
             uint64_t pool, const std::vector<int64_t>& functions, uint32_t receive_frames, bool poll) {
            self.use_dpdk(address, dpdk_settings(ports, mtu, pool, functions, receive_frames, poll));
          },
          "address"_a, nb::kw_only(), "ports"_a, "mtu"_a, "pool"_a, "functions"_a, "receive_frames"_a, "poll"_a)
      .def("host_counters", &host_counters)
      .def("close",
           [](NativeSwitch& self) {
             self.loops();
             without_gil([&] { self.close(); });
           })
      .def("abandon", &NativeSwitch::abandon)
      .def_prop_ro("in_own_process", &NativeSwitch::in_own_process)
      .def_prop_ro("address", [](NativeSwitch& self) { return to_address(self.local()); })
      .def_prop_ro("receive_buffer", [](NativeSwitch& self) { return self.receive_buffer(); })
      .def_prop_ro("link_name", &NativeSwitch::link_name)
      .def_prop_ro("gso", [](NativeSwitch& self) { return self.udp() && self.udp()->gso(); })
      .def_prop_ro("gro", [](NativeSwitch& self) { return self.udp() && self.udp()->gro(); })
      .def_prop_ro("failure", [](NativeSwitch& self) { return without_gil([&] { return self.loops().failure(); }); })
      .def("remove_job",
           [](NativeSwitch& self, int64_t job) {
             with_usage_errors([&] {
               const auto id = narrow<uint16_t>("job", job);
               without_gil([&] { self.remove_job(id); });
             });
           },
           "job_id"_a)
      .def("packet_out",
           [](NativeSwitch& self, nb::bytes packet) {
             const std::span<const uint8_t> bytes(data_of(packet), packet.size());
             const bool back = without_gil([&] { return self.loops().packet_out(bytes); });
             return back ? std::vector<nb::bytes>{packet} : std::vector<nb::bytes>{};
           },
           "packet"_a)
      .def("port_counters", &port_counters)
      .def("stray_counters", &stray_counters)
      .def("rate_counters", &rate_counters)
      .def("fault_counters", &fault_counters)
      .def("capture_counters", &capture_counters);
}

// -------------------------------------------------------------------------------------------- the switch on Ethernet

using Match = std::pair<uint64_t, uint64_t>;  // value and mask
using OwnSource = std::pair<uint64_t, std::array<Match, 5>>;
using Local = std::tuple<uint64_t, std::array<Match, 4>, uint8_t>;

template <size_t kKeys>
TernaryEntry<kKeys> to_entry(uint64_t id, const std::array<Match, kKeys>& matches, uint8_t action = 0) {
  TernaryEntry<kKeys> entry{id, {}, static_cast<LocalAction>(action)};
  for (size_t i = 0; i < kKeys; ++i) entry.keys[i] = {matches[i].first & matches[i].second, matches[i].second};
  return entry;
}

StationAction to_action(uint8_t kind, uint16_t to) { return {static_cast<StationAction::Kind>(kind), to}; }

std::vector<uint8_t> to_vector(nb::bytes bytes) { return {data_of(bytes), data_of(bytes) + bytes.size()}; }

nb::bytes to_bytes(const std::vector<uint8_t>& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

template <typename Function>
auto on_tables(NativeSwitch& self, Function&& function) {
  return without_gil([&] { return self.ether().with_tables(function); });
}

// A method of FrameTables as one of the switch.
template <typename Result, typename... Arguments>
auto of_tables(Result (FrameTables::*method)(Arguments...)) {
  return [method](NativeSwitch& self, Arguments... arguments) {
    return on_tables(self, [&](FrameTables& tables) { return (tables.*method)(std::move(arguments)...); });
  };
}

void set_own_source(NativeSwitch& self, const std::vector<OwnSource>& given) {
  std::vector<OwnSourceEntry> entries;
  for (const auto& [id, matches] : given) entries.push_back(to_entry(id, matches));
  on_tables(self, [&](FrameTables& tables) { tables.set_own_source(std::move(entries)); });
}

void set_local(NativeSwitch& self, const std::vector<Local>& given) {
  std::vector<LocalEntry> entries;
  for (const auto& [id, matches, action] : given) entries.push_back(to_entry(id, matches, action));
  on_tables(self, [&](FrameTables& tables) { tables.set_local(std::move(entries)); });
}

void bind_ethernet(nb::class_<NativeSwitch>& bound) {
  bound
      .def("open_ethernet", &NativeSwitch::open_ethernet, "interfaces"_a, nb::kw_only(), "queues"_a, "udp_port"_a,
           "controller_port"_a, "receive_buffer"_a, "rate"_a.none(), "faults"_a.none(), "capture"_a)
      .def("add_placed_job",
           [](NativeSwitch& self, nb::handle job, const std::vector<NativeSwitch::Station>& stations) {
             const JobAdmission admission = to_admission(job);
             if (stations.size() != admission.workers.size() + (admission.parent ? 1 : 0))
               throw nb::value_error("expected a station for each worker, and for the parent");
             with_usage_errors([&] { without_gil([&] { self.add_job(admission, stations); }); });
           },
           "job"_a, "stations"_a)
      .def("feed",
           [](NativeSwitch& self, std::optional<uint16_t> port, nb::bytes frame) {
             Endpoint from;
             if (port) from.switch_port = EtherPort::endpoint_port(*port);
             std::vector<std::pair<uint16_t, nb::bytes>> out;
             for (const auto& [to, bytes] : self.feed(from, to_vector(frame)))
               out.emplace_back(static_cast<uint16_t>(to.switch_port - 1), to_bytes(bytes));
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
             on_tables(self, [&](FrameTables& tables) { tables.set_station(mac, to_action(kind, to)); });
           },
           "mac"_a, "kind"_a, "to"_a)
      .def("remove_station", of_tables(&FrameTables::remove_station), "mac"_a)
      .def("set_default_station",
           [](NativeSwitch& self, uint8_t kind, uint16_t to) {
             on_tables(self, [&](FrameTables& tables) { tables.set_default_station(to_action(kind, to)); });
           },
           "kind"_a, "to"_a)
      .def("set_group", of_tables(&FrameTables::set_group), "group"_a, "ports"_a)
      .def("remove_group", of_tables(&FrameTables::remove_group), "group"_a)
      .def("set_arps", of_tables(&FrameTables::set_arps), "macs"_a)
      .def("clear_frame_tables", of_tables(&FrameTables::clear))
      .def("entry_packets",
           [](NativeSwitch& self) { return on_tables(self, [](const FrameTables& tables) { return tables.entry_packets(); }); })
      .def("station_packets",
           [](NativeSwitch& self) { return on_tables(self, [](const FrameTables& tables) { return tables.station_packets(); }); })
      .def("ether_counters", &ether_counters)
      .def("interface_counters", &interface_counters);
}

}  // namespace
}  // namespace switchagg

NB_MODULE(_native, module) {
  using namespace switchagg;
  nb::set_leak_warnings(false);  // a daemon thread may hold a switch when a process ends, which no user can help
  bind_slot_table(module);
  nb::class_<FaultSettings>(module, "FaultSettings")
      .def(nb::init<double, double, double, double, int64_t, int64_t, uint64_t>(), nb::kw_only(), "loss"_a,
           "duplicate"_a, "reorder"_a, "corrupt"_a, "delay_ns"_a, "jitter_ns"_a, "seed"_a);
  nb::class_<RateSettings>(module, "RateSettings")
      .def(nb::init<double, uint64_t, uint64_t>(), nb::kw_only(), "bits_per_second"_a, "queue_bytes"_a, "mark_bytes"_a);
  nb::class_<NativeSwitch> bound(module, "NativeSwitch");
  bind_switch(bound);
  bind_ethernet(bound);
}
