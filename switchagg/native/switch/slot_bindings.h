// Between the slot table and Python: shared by the table's own binding and the switch's.
#pragma once

#include <nanobind/nanobind.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "switchagg/native/switch/slot_table.h"

namespace switchagg {

using Address = std::pair<std::string, uint16_t>;  // ("127.0.0.1", 48879)

Endpoint to_endpoint(const Address& address);  // raises UsageError for what is no IPv4 address
Address to_address(Endpoint endpoint);

JobAdmission to_admission(nanobind::handle job_entry);  // of a switchagg.rules.slots.JobEntry; raises TypeError for others
nanobind::dict to_dict(const Counters& counters);       // by name
nanobind::object to_slot_state(const SlotTable::SlotView& slot);  // a switchagg.rules.slots.SlotState

// Of one job, taken together under the table's lock.
struct JobCounts {
  Counters counters;
  JobOutcomes outcomes;
  std::vector<std::pair<uint32_t, WorkerOutcomes>> workers;

  JobCounts(const SlotTable& table, uint16_t job)
      : counters(table.job_counters(job)), outcomes(table.job_outcomes(job)), workers(table.worker_outcomes(job)) {}
};

nanobind::dict to_dict(const JobCounts& counts);         // the counters by name, and worker_<bit>_packets
nanobind::object to_outcomes(const JobCounts& counts);    // a switchagg.emulator.outcomes.JobOutcomes

[[noreturn]] void raise_usage_error(const char* message);  // switchagg.errors.UsageError

// An id or index that a person gave; throws std::invalid_argument for one that cannot be any.
template <typename To>
To narrow(const char* name, int64_t value) {
  if (value < 0 || value > std::numeric_limits<To>::max())
    throw std::invalid_argument("there is no " + std::string(name) + " " + std::to_string(value));
  return static_cast<To>(value);
}

// Calls `function`; a std::invalid_argument becomes a UsageError.
template <typename Function>
decltype(auto) with_usage_errors(Function&& function) {
  try {
    return function();
  } catch (const std::invalid_argument& error) {
    raise_usage_error(error.what());
  }
}

void bind_slot_table(nanobind::module_& module);

}  // namespace switchagg
