// switchagg.emulator._native: the slot table, and the switch that serves it on a UDP socket or between interfaces.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "switchagg/native/switch/ether_bindings.h"
#include "switchagg/native/switch/native_switch.h"
#include "switchagg/native/switch/slot_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {
namespace {

// A view of a slot with words of its own, taken under the lock.
struct SlotCopy {
  SlotTable::SlotView view;
  std::vector<uint8_t> words;

  explicit SlotCopy(const SlotTable::SlotView& slot) : view(slot), words(slot.words.begin(), slot.words.end()) {}
  SlotTable::SlotView get() const { return {view.seq, view.seen, view.filled, words}; }
};

JobCounts job_counts(NativeSwitch& self, uint16_t job) {
  return without_gil([&] {
    return self.loop().with_table([&](const SlotTable& table) { return JobCounts(table, job); });
  });
}

nb::dict port_counters(NativeSwitch& self) {
  const PortCounters counters = without_gil([&] { return self.loop().port_counters(); });
  nb::dict by_name;
  by_name["packets_in"] = counters.packets_in;
  by_name["bytes_in"] = counters.bytes_in;
  by_name["packets_out"] = counters.packets_out;
  by_name["bytes_out"] = counters.bytes_out;
  by_name["receive_calls"] = counters.receive_calls;
  by_name["send_calls"] = counters.send_calls;
  by_name["refused"] = counters.refused;
  by_name["send_errors"] = counters.send_errors;
  return by_name;
}

nb::dict fault_counters(NativeSwitch& self) {
  nb::dict by_name;
  if (!self.faults()) return by_name;
  const std::pair<const char*, const FaultCounters*> directions[] = {{"_in", &self.faults()->faults_in()},
                                                                     {"_out", &self.faults()->faults_out()}};
  for (const auto& [suffix, counters] : directions) {
    const auto put = [&](const std::string& name, const RelaxedCounter& count) {
      by_name[(name + suffix).c_str()] = uint64_t{count};
    };
    put("lost", counters->lost);
    put("corrupted", counters->corrupted);
    put("duplicated", counters->duplicated);
    put("reordered", counters->reordered);
    put("delayed", counters->delayed);
    put("overflowed", counters->overflowed);
  }
  return by_name;
}

nb::dict rate_counters(NativeSwitch& self) {
  nb::dict by_name;
  if (!self.rate()) return by_name;
  const std::pair<const char*, const RateCounters*> directions[] = {{"_in", &self.rate()->rate_in()},
                                                                    {"_out", &self.rate()->rate_out()}};
  for (const auto& [suffix, counters] : directions) {
    const auto put = [&](const std::string& name, const RelaxedCounter& count) {
      by_name[(name + suffix).c_str()] = uint64_t{count};
    };
    put("packets", counters->packets);
    put("wire_bytes", counters->wire_bytes);
    put("queued", counters->queued);
    put("dropped", counters->dropped);
  }
  return by_name;
}

nb::dict capture_counters(NativeSwitch& self) {
  nb::dict by_name;
  if (!self.capture()) return by_name;
  by_name["captured"] = self.capture()->captured();
  by_name["missing"] = self.capture()->missing();
  by_name["error"] = self.capture()->error();
  return by_name;
}

void bind_switch(nb::module_& module) {
  nb::class_<FaultSettings>(module, "FaultSettings")
      .def("__init__",
           [](FaultSettings* self, double loss, double duplicate, double reorder, double corrupt, int64_t delay_ns,
              int64_t jitter_ns, uint64_t seed) {
             new (self) FaultSettings{loss, duplicate, reorder, corrupt, delay_ns, jitter_ns, seed};
           },
           nb::kw_only(), "loss"_a, "duplicate"_a, "reorder"_a, "corrupt"_a, "delay_ns"_a, "jitter_ns"_a, "seed"_a);

  nb::class_<RateSettings>(module, "RateSettings")
      .def("__init__",
           [](RateSettings* self, double bits_per_second, uint64_t queue_bytes) {
             new (self) RateSettings{bits_per_second, queue_bytes};
           },
           nb::kw_only(), "bits_per_second"_a, "queue_bytes"_a);

  nb::class_<NativeSwitch> native(module, "NativeSwitch");
  native.def("__init__",
           [](NativeSwitch* self, int64_t capacity) {
             with_usage_errors([&] { new (self) NativeSwitch(narrow<uint32_t>("capacity of", capacity)); });
           },
           "capacity"_a)
      .def("open",
           [](NativeSwitch& self, const Address& address, int receive_buffer, bool offload, nb::handle rate,
              nb::handle faults, int capture, bool links) {
             std::optional<RateSettings> speed;
             if (!rate.is_none()) speed = nb::cast<RateSettings>(rate);
             std::optional<FaultSettings> settings;
             if (!faults.is_none()) settings = nb::cast<FaultSettings>(faults);
             self.open(address, receive_buffer, offload, speed, settings, capture, links);
           },
           "address"_a, nb::kw_only(), "receive_buffer"_a, "offload"_a, "rate"_a.none(), "faults"_a.none(),
           "capture"_a, "links"_a)
      .def("close",
           [](NativeSwitch& self) {
             self.loop();
             without_gil([&] { self.close(); });
           })
      .def("abandon", &NativeSwitch::abandon)
      .def_prop_ro("in_own_process", [](NativeSwitch& self) { return self.in_own_process(); })
      .def_prop_ro("address", [](NativeSwitch& self) { return to_address(self.udp().local()); })
      .def_prop_ro("receive_buffer", [](NativeSwitch& self) { return self.udp().receive_buffer(); })
      .def_prop_ro("link_name", [](NativeSwitch& self) { return self.link_name(); })
      .def_prop_ro("gso", [](NativeSwitch& self) { return self.udp().gso(); })
      .def_prop_ro("gro", [](NativeSwitch& self) { return self.udp().gro(); })
      .def_prop_ro("failure", [](NativeSwitch& self) { return without_gil([&] { return self.loop().failure(); }); })
      .def("add_job",
           [](NativeSwitch& self, nb::handle job) {
             const JobAdmission admission = to_admission(job);
             with_usage_errors([&] {
               without_gil([&] { self.loop().with_table([&](SlotTable& table) { table.add_job(admission); }); });
             });
           },
           "job"_a)
      .def("remove_job",
           [](NativeSwitch& self, int64_t job_id) {
             with_usage_errors([&] {
               const auto id = narrow<uint16_t>("job", job_id);
               without_gil([&] { self.remove_job(id); });
             });
           },
           "job_id"_a)
      .def("packet_out",
           [](NativeSwitch& self, nb::bytes packet) {
             const std::span<const uint8_t> bytes(static_cast<const uint8_t*>(packet.data()), packet.size());
             const auto answers = without_gil([&] { return self.loop().packet_out(bytes); });
             std::vector<nb::bytes> out;
             for (const auto& answer : answers) out.emplace_back(answer.data(), answer.size());
             return out;
           },
           "packet"_a)
      .def("counters",
           [](NativeSwitch& self) {
             return to_dict(without_gil([&] {
               return self.loop().with_table([](const SlotTable& table) { return table.counters(); });
             }));
           })
      .def("job_counters",
           [](NativeSwitch& self, int64_t job_id) {
             return with_usage_errors([&] {
               const auto id = narrow<uint16_t>("job", job_id);
               return to_dict(job_counts(self, id));
             });
           },
           "job_id"_a)
      .def("fence",
           [](NativeSwitch& self, int64_t job_id, uint32_t bits) {
             with_usage_errors([&] {
               const auto id = narrow<uint16_t>("job", job_id);
               without_gil([&] { self.loop().with_table([&](SlotTable& table) { table.fence(id, bits); }); });
             });
           },
           "job_id"_a, "bits"_a)
      .def("admit",
           [](NativeSwitch& self, int64_t job_id, uint32_t bits) {
             with_usage_errors([&] {
               const auto id = narrow<uint16_t>("job", job_id);
               without_gil([&] { self.loop().with_table([&](SlotTable& table) { table.admit(id, bits); }); });
             });
           },
           "job_id"_a, "bits"_a)
      .def("outcome_counters",
           [](NativeSwitch& self, int64_t job_id) {
             return with_usage_errors([&] { return to_outcomes(job_counts(self, narrow<uint16_t>("job", job_id))); });
           },
           "job_id"_a)
      .def("unknown_job_counters",
           [](NativeSwitch& self) {
             return to_dict(without_gil([&] {
               return self.loop().with_table([](const SlotTable& table) { return table.unknown_job_counters(); });
             }));
           })
      .def("slot",
           [](NativeSwitch& self, int64_t index) {
             return with_usage_errors([&] {
               const auto slot = narrow<uint32_t>("slot", index);
               const SlotCopy copy = without_gil([&] {
                 return self.loop().with_table([&](const SlotTable& table) { return SlotCopy(table.slot(slot)); });
               });
               return to_slot_state(copy.get());
             });
           },
           "index"_a)
      .def("port_counters", &port_counters)
      .def("rate_counters", &rate_counters)
      .def("fault_counters", &fault_counters)
      .def("capture_counters", &capture_counters);
  bind_ethernet(native);
}

}  // namespace
}  // namespace switchagg

NB_MODULE(_native, module) {
  // See the worker's module: what a daemon thread still holds when a process ends is nothing to print.
  nanobind::set_leak_warnings(false);
  switchagg::bind_slot_table(module);
  switchagg::bind_switch(module);
}
