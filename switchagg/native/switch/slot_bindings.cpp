#include "switchagg/native/switch/slot_bindings.h"

#include <arpa/inet.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {

void raise_usage_error(const char* message) {
  PyErr_SetString(nb::module_::import_("switchagg.errors").attr("UsageError").ptr(), message);
  throw nb::python_error();
}

Endpoint to_endpoint(const Address& address) {
  in_addr ip{};
  if (inet_pton(AF_INET, address.first.c_str(), &ip) != 1)
    raise_usage_error(("'" + address.first + "' is no IPv4 address").c_str());
  return {ntohl(ip.s_addr), address.second};
}

Address to_address(Endpoint endpoint) {
  const in_addr ip{htonl(endpoint.ip)};
  char text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &ip, text, sizeof text);
  return {text, endpoint.port};
}

JobAdmission to_admission(nb::handle entry) {
  // Only a JobEntry: its values have been checked.
  if (!nb::isinstance(entry, nb::module_::import_("switchagg.rules.slots").attr("JobEntry")))
    throw nb::type_error("expected a switchagg.rules.slots.JobEntry");
  JobAdmission job;
  job.job = nb::cast<uint16_t>(entry.attr("job"));
  job.base = nb::cast<uint32_t>(entry.attr("base"));
  job.slots = nb::cast<uint32_t>(entry.attr("slots"));
  job.words = nb::cast<uint32_t>(entry.attr("words"));
  job.result_token = nb::cast<uint32_t>(entry.attr("result_token"));
  job.touch = nb::cast<bool>(entry.attr("touch"));
  for (nb::handle worker : entry.attr("workers")) {
    const Address address{nb::cast<std::string>(worker.attr("ip")), nb::cast<uint16_t>(worker.attr("port"))};
    job.workers.push_back({to_endpoint(address), nb::cast<uint32_t>(worker.attr("bit")),
                           nb::cast<uint32_t>(worker.attr("token"))});
  }
  const nb::object parent = entry.attr("parent");
  if (!parent.is_none()) {
    const Address address{nb::cast<std::string>(parent.attr("ip")), nb::cast<uint16_t>(parent.attr("port"))};
    job.parent = {to_endpoint(address), nb::cast<uint32_t>(parent.attr("token")),
                  nb::cast<uint32_t>(parent.attr("base")), nb::cast<uint32_t>(parent.attr("result_token"))};
  }
  return job;
}

nb::dict to_dict(const Counters& counters) {
  nb::dict by_name;
  for (size_t i = 0; i < counters.size(); ++i) by_name[wire::kCounterNames[i]] = counters[i];
  return by_name;
}

nb::dict to_dict(const JobCounts& counts) {
  nb::dict by_name = to_dict(counts.counters);
  for (const auto& [bit, worker] : counts.workers)
    by_name[("worker_" + std::to_string(bit) + "_packets").c_str()] = worker.packets;
  return by_name;
}

nb::object to_outcomes(const JobCounts& counts) {
  const nb::module_ module = nb::module_::import_("switchagg.emulator.outcomes");
  nb::dict workers;
  for (const auto& [bit, worker] : counts.workers)
    workers[nb::int_(bit)] =
        module.attr("WorkerOutcomes")(worker.packets, worker.retransmissions, worker.misplaced, worker.outside, worker.token,
                                       worker.delivered);
  nb::list outcomes;
  for (uint64_t each : counts.outcomes.outcomes) outcomes.append(each);
  return module.attr("JobOutcomes")(nb::tuple(outcomes), counts.outcomes.source, counts.outcomes.length,
                                   counts.outcomes.outside, workers, counts.outcomes.delivered);
}

nb::object to_slot_state(const SlotTable::SlotView& slot) {
  nb::object words = nb::none();
  if (slot.filled) {
    const size_t count = slot.words.size() / 4;
    auto* host = new uint32_t[count];
    nb::capsule owner(host, [](void* memory) noexcept { delete[] static_cast<uint32_t*>(memory); });
    for (size_t i = 0; i < count; ++i) host[i] = wire::load32(slot.words.data() + 4 * i);
    words = nb::cast(nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>(host, {count}, owner));
  }
  return nb::module_::import_("switchagg.rules.slots").attr("SlotState")(slot.seq, slot.seen, slot.filled, words);
}

namespace {

using Out = std::pair<std::optional<Address>, nb::bytes>;

nb::bytes to_bytes(Segment segment) { return nb::bytes(segment.data, segment.size); }

Verdict process(SlotTable& table, nb::bytes packet, const std::optional<Address>& source) {
  return table.process(Received::whole(static_cast<const uint8_t*>(packet.data()), static_cast<uint32_t>(packet.size()),
                                       source ? to_endpoint(*source) : Endpoint{}),
                       !source);
}

void append(std::vector<Out>& outs, const SlotTable& table, const Verdict& verdict, nb::bytes packet) {
  switch (verdict.action) {
    case Action::none:
    case Action::flush:
      break;
    case Action::multicast:
      for (Endpoint each : table.audience(verdict.job_index))
        outs.emplace_back(to_address(each), to_bytes(table.result(verdict.job_index, verdict.slot)));
      break;
    case Action::deliver: {
      std::vector<uint8_t> scratch(wire::kMaxPacketBytes);
      const auto* data = static_cast<const uint8_t*>(packet.data());
      const Received received = Received::whole(data, static_cast<uint32_t>(packet.size()), {});
      const nb::bytes down = to_bytes(table.delivered(verdict, received, scratch.data()));
      if (verdict.reply != 0) {
        outs.emplace_back(to_address(verdict.to), down);
        break;
      }
      for (Endpoint worker : table.workers(verdict.job_index)) outs.emplace_back(to_address(worker), down);
      break;
    }
    case Action::unicast:
      if (verdict.reply == 0) {
        outs.emplace_back(to_address(verdict.to), to_bytes(table.result(verdict.job_index, verdict.slot)));
      } else {
        std::vector<uint8_t> scratch(wire::kMaxPacketBytes);
        outs.emplace_back(to_address(verdict.to), to_bytes(table.result_with_reply(verdict, scratch.data())));
      }
      break;
    case Action::to_controller:
      outs.emplace_back(std::nullopt, packet);
      break;
  }
}

std::vector<Out> receive(SlotTable& table, nb::bytes packet, const std::optional<Address>& source) {
  std::vector<Out> outs;
  append(outs, table, process(table, packet, source), packet);
  table.flushed();  // copied: no view is left, so no packet is ever told to wait for a flush
  return outs;
}

using Packet = std::pair<nb::bytes, std::optional<Address>>;

// As the packet loop does it: results are read, late, from the slots' own memory.
std::pair<std::vector<Out>, uint32_t> receive_batch(SlotTable& table, const std::vector<Packet>& packets) {
  std::vector<Out> outs;
  std::vector<std::pair<Verdict, nb::bytes>> outstanding;
  uint32_t flushes = 0;
  auto flush = [&] {
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

// For the tests that hold C++ to the Python definitions, and every instruction set to the same words.

std::vector<std::pair<std::string, const SlotKernels*>> kernel_levels() {
  std::vector<std::pair<std::string, const SlotKernels*>> levels{{"base", &slot_kernels_base}};
#ifdef SWITCHAGG_X86
  if (__builtin_cpu_supports("x86-64-v3")) levels.emplace_back("v3", &slot_kernels_v3);
  if (__builtin_cpu_supports("x86-64-v4")) levels.emplace_back("v4", &slot_kernels_v4);
#endif
  return levels;
}

nb::bytes run_kernel(const std::string& level, const std::string& kernel, nb::bytes to, nb::bytes from) {
  for (const auto& [name, kernels] : kernel_levels()) {
    if (name != level) continue;
    if (to.size() != from.size() || to.size() % 4) throw nb::value_error("expected two runs of equally many words");
    const WordKernel run = kernel == "copy" ? kernels->copy : kernel == "add" ? kernels->add : kernels->or_words;
    std::string result(to.c_str(), to.size());
    run(reinterpret_cast<uint8_t*>(result.data()), static_cast<const uint8_t*>(from.data()), to.size() / 4);
    return nb::bytes(result.data(), result.size());
  }
  throw nb::value_error("no such level here");
}

std::vector<std::string> kernel_level_names() {
  std::vector<std::string> names;
  for (const auto& [name, kernels] : kernel_levels()) names.push_back(name);
  return names;
}

nb::dict parse_header(nb::bytes data) {
  if (data.size() < wire::kHeaderBytes) throw nb::value_error("shorter than a header");
  const auto header = wire::Header::parse(static_cast<const uint8_t*>(data.data()));
  nb::dict fields;
  fields["version"] = header.version;
  fields["op"] = header.op;
  fields["flags"] = header.flags;
  fields["job"] = header.job;
  fields["token"] = header.token;
  fields["seq"] = header.seq;
  fields["slot"] = header.slot;
  fields["reply"] = header.reply;
  return fields;
}

nb::bytes rewrite_header(nb::bytes data) {
  if (data.size() < wire::kHeaderBytes) throw nb::value_error("shorter than a header");
  uint8_t written[wire::kHeaderBytes];
  wire::Header::parse(static_cast<const uint8_t*>(data.data())).write(written);
  return nb::bytes(written, sizeof written);
}

}  // namespace

void bind_slot_table(nb::module_& module) {
  nb::class_<SlotTable>(module, "SlotTable")
      .def("__init__",
           [](SlotTable* self, int64_t capacity) {
             with_usage_errors([&] { new (self) SlotTable(narrow<uint32_t>("capacity of", capacity)); });
           },
           "capacity"_a)
      .def("add_job",
           [](SlotTable& self, nb::handle job) {
             const JobAdmission admission = to_admission(job);
             with_usage_errors([&] { self.add_job(admission); });
           },
           "job"_a)
      .def("remove_job",
           [](SlotTable& self, int64_t job_id) {
             with_usage_errors([&] { self.remove_job(narrow<uint16_t>("job", job_id)); });
           },
           "job_id"_a)
      .def("receive", &receive, "payload"_a, "source"_a.none())
      .def("receive_batch", &receive_batch, "packets"_a)
      .def("counters", [](const SlotTable& self) { return to_dict(self.counters()); })
      .def("job_counters",
           [](const SlotTable& self, int64_t job_id) {
             return with_usage_errors([&] {
               const auto job = narrow<uint16_t>("job", job_id);
               return to_dict(JobCounts(self, job));
             });
           },
           "job_id"_a)
      .def("fence",
           [](SlotTable& self, int64_t job_id, uint32_t bits) {
             with_usage_errors([&] { self.fence(narrow<uint16_t>("job", job_id), bits); });
           },
           "job_id"_a, "bits"_a)
      .def("admit",
           [](SlotTable& self, int64_t job_id, uint32_t bits) {
             with_usage_errors([&] { self.admit(narrow<uint16_t>("job", job_id), bits); });
           },
           "job_id"_a, "bits"_a)
      .def("outcome_counters",
           [](const SlotTable& self, int64_t job_id) {
             return with_usage_errors([&] { return to_outcomes(JobCounts(self, narrow<uint16_t>("job", job_id))); });
           },
           "job_id"_a)
      .def("unknown_job_counters", [](const SlotTable& self) { return to_dict(self.unknown_job_counters()); })
      .def("slot",
           [](const SlotTable& self, int64_t index) {
             return with_usage_errors([&] { return to_slot_state(self.slot(narrow<uint32_t>("slot", index))); });
           },
           "index"_a);
  module.def("parse_header", &parse_header, "data"_a);
  module.def("rewrite_header", &rewrite_header, "data"_a);
  module.def("kernel_levels", &kernel_level_names);
  module.def("run_kernel", &run_kernel, "level"_a, "kernel"_a, "to"_a, "source"_a);
}

}  // namespace switchagg
