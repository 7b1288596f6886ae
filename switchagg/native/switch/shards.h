// The packet loops of one switch, a thread each, as one: jobs are in all of their tables, counts are added up.
//
//      loop 0: slots 0..63, 64n..64n+63, ...     <->  UdpPort    one address and port, SO_REUSEPORT
//      loop 1: slots 64..127, ...                <->  UdpPort    the kernel picks a socket by the packet's slot
//        ^--> strays.h <--^
//
// No lock is on a packet's way between the loops. With one loop it is that loop.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "switchagg/native/switch/loop.h"

namespace switchagg {

class Shards {
 public:
  static constexpr uint32_t kMaxThreads = 64;

  explicit Shards(uint32_t capacity, uint32_t threads = 1);  // throws std::invalid_argument

  size_t size() const { return loops_.size(); }
  SwitchLoop& at(size_t index) { return *loops_[index]; }
  SwitchLoop& first() { return at(0); }  // of one loop, the switch
  void start(std::span<Port* const> ports);   // one for each loop
  void stop();
  bool in_own_process() const { return loops_[0]->in_own_process(); }

  // As SlotTable has them.
  void add_job(const JobAdmission& job);
  void remove_job(uint16_t job);
  void fence(uint16_t job, uint32_t bits);
  void admit(uint16_t job, uint32_t bits);
  Counters counters();
  Counters unknown_job_counters();
  JobReport report(uint16_t job);
  template <typename Function>
  auto with_slot(uint32_t index, Function&& function) {  // calls it with SlotTable::slot()
    std::lock_guard guard(jobs_);
    const uint32_t owner = loops_[0]->with_table([&](const SlotTable& table) { return table.owner(index); });
    return loops_[owner]->with_table([&](const SlotTable& table) { return function(table.slot(index)); });
  }

  bool packet_out(std::span<const uint8_t> packet);  // true if it goes back to the controller's port
  PortCounters port_counters();
  std::string failure();

  struct Strays {
    uint64_t packets = 0, dropped = 0;
  };
  Strays strays() const;

 private:
  template <typename Function>
  void on_all(Function&& function) {  // calls it with each table
    std::lock_guard guard(jobs_);
    for (const auto& loop : loops_) loop->with_table(function);
  }

  std::mutex jobs_;  // so that all tables have the same jobs
  std::vector<std::unique_ptr<StrayQueue>> queues_;
  std::vector<std::unique_ptr<SwitchLoop>> loops_;
};

}  // namespace switchagg
