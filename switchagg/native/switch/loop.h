// The switch's packet loop: a thread that moves datagrams between a port and the slot table.
//
//      wait -> receive a batch -> SlotTable::process each -> send the RESULTs from slot memory -> ...
//
// RESULTs leave after each received batch, so that they travel in trains: for each job the records of all slots that it
// finished, those with words first, then those without (a train is made of equal sizes), to all of the job's workers, or
// at a leaf to its parent; then what its parent has sent for all of them; and the repeats, grouped by worker. The records are sent from where they lie, which is why the table's lock is held until
// they are gone. The loop sleeps in the port when nothing comes, and allocates nothing for a packet.
//
// Other threads reach the table through with_table(), between two batches and in the order of asking. Nothing is
// outstanding then.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "switchagg/native/switch/fair_mutex.h"
#include "switchagg/native/switch/slot_table.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

class SwitchLoop {
 public:
  explicit SwitchLoop(uint32_t capacity);  // slots; throws std::invalid_argument
  ~SwitchLoop() { stop(); }
  SwitchLoop(const SwitchLoop&) = delete;
  SwitchLoop& operator=(const SwitchLoop&) = delete;

  void start(Port& port);  // once; the port outlives the loop. Throws std::system_error where no thread can be made
  void stop();             // ends the thread
  void turn(Port& port);   // instead of a thread: takes in one batch, and sends what comes of it

  // False in a forked child. There is no thread there, and locks may be held by nobody: nothing else may be called, and
  // the object must be leaked.
  bool in_own_process() const;

  template <typename Function>
  decltype(auto) with_table(Function&& function) {
    std::lock_guard<FairMutex> guard(lock_);
    return function(table_);
  }
  // What comes from the controller's port; returns the packets that go back to it.
  std::vector<std::vector<uint8_t>> packet_out(std::span<const uint8_t> packet);
  PortCounters port_counters();
  std::string failure();  // why the loop ended by itself; empty: it did not

 private:
  struct Repeat {
    Endpoint to;
    Segment result;
  };
  struct Train {  // a train is made of equal sizes
    std::vector<Segment> with_words, without;
    bool empty() const { return with_words.empty() && without.empty(); }
  };
  struct Finished {  // of one job, since the last flush
    Train full, delivered;
  };

  void serve();
  void serve_batches();
  void take(const Received& datagram);
  void finish(const Verdict& verdict);
  void repeat(const Verdict& verdict);
  void deliver(const Verdict& verdict, const Received& datagram);
  uint8_t* room();
  Train& train(uint32_t job_index, Train Finished::*which);
  void flush();

  SlotTable table_;
  Port* port_ = nullptr;
  FairMutex lock_;
  std::thread thread_;
  std::atomic<bool> stopping_{false};
  int process_ = 0;

  // Guarded by the lock, like the table.
  PortCounters port_counters_;
  std::string failure_;

  // The thread's own; they keep their capacity.
  std::vector<Received> arrived_;
  std::vector<Finished> finished_;    // by job index
  std::vector<uint32_t> to_multicast_;  // job indices with something in finished_
  std::vector<Repeat> repeats_;
  std::vector<Segment> run_;
  std::unique_ptr<uint8_t[]> scratch_;  // what has another header than it came with, or is stored with
  size_t scratch_used_ = 0;
};

}  // namespace switchagg
