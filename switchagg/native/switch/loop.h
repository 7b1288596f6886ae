// The switch's packet loop: a thread that moves datagrams between a port and the slot table.
//
//      wait -> receive a batch -> SlotTable::process each -> send the RESULTs from slot memory -> ...
//
// RESULTs are sent after each received batch, so that they travel in trains of equal size. For each job: the records of all
// complete slots, those with words first, to all of its workers, or from a leaf to its parent; then those that one worker
// reads, with words to it and bare to the others; then RESULTs of its parent for all workers. Last come answers to retransmissions, by worker. Records are sent from the slots' memory, so the table
// stays locked until they are sent. The loop sleeps in the port and allocates nothing per packet.
//
// Other threads reach the table through with_table(), between two batches and in the order of asking.
//
// A switch may have several loops (shards.h). What a loop receives for the table of another it hands over after the batch.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "switchagg/native/switch/concurrency.h"
#include "switchagg/native/switch/slot_table.h"
#include "switchagg/native/switch/strays.h"

namespace switchagg {

class SwitchLoop {
 public:
  explicit SwitchLoop(uint32_t capacity, Shard shard = {});  // slots of all loops; throws std::invalid_argument
  ~SwitchLoop() { stop(); }
  SwitchLoop(const SwitchLoop&) = delete;
  SwitchLoop& operator=(const SwitchLoop&) = delete;

  // Before start(): the loop with this index gets its strays through `to`, and this one its own through `from`.
  void join(SwitchLoop& other, StrayQueue& to, StrayQueue& from);
  void use(Port& port) { port_ = &port; }  // before start(), where other loops may wake this one
  void start(Port& port);  // once; the port outlives the loop. Throws std::system_error where no thread can be made
  void stop();             // ends the thread
  void turn(Port& port);   // instead of a thread: processes one batch

  // False in a forked child, where the thread does not exist and locks may stay locked: call nothing else there, and leak
  // the object.
  bool in_own_process() const;

  template <typename Function>
  decltype(auto) with_table(Function&& function) {
    std::lock_guard<FairMutex> guard(lock_);
    return function(table_);
  }
  // Processes a packet from the controller's port: to_controller if it goes back there, or stray.
  Verdict packet_out(std::span<const uint8_t> packet);
  PortCounters port_counters();
  std::string failure();  // the error that ended the loop, or empty

 private:
  struct Answer {  // to a retransmission
    Endpoint to;
    Segment result;
  };
  struct Train {  // a train is made of equal sizes
    std::vector<Segment> with_words, without;
    bool empty() const { return with_words.empty() && without.empty(); }
    void add(Segment result) { (result.size > wire::kHeaderBytes ? with_words : without).push_back(result); }
  };
  struct Directed {  // a complete slot's record, and its bare header's place in bare_
    uint16_t reader;
    Segment result;
    size_t bare;
  };
  struct Finished {  // of one job, since the last flush
    Train full, delivered;
    std::vector<Directed> directed;
    bool empty() const { return full.empty() && delivered.empty() && directed.empty(); }
  };

  struct Other {
    SwitchLoop* loop = nullptr;
    StrayQueue *to = nullptr, *from = nullptr;
    bool handed = false;  // something, since the last time that it was woken
  };

  void serve();
  void hand_over();
  void on_packet(const Received& datagram);
  void answer(const Verdict& verdict);
  void deliver(const Verdict& verdict, const Received& datagram);
  uint8_t* scratch();
  Finished& finished(uint32_t job_index);
  void direct(const Verdict& verdict);
  void send_directed(uint32_t job_index, std::vector<Directed>& directed);
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

  // Only the thread's; they keep their capacity.
  std::vector<Received> arrived_;
  std::vector<std::pair<uint32_t, Received>> strays_;
  std::vector<Other> others_;         // loops, by index; not itself
  std::vector<Finished> finished_;    // by job index
  std::vector<uint32_t> to_multicast_;  // job indices with something in finished_
  std::vector<Answer> answers_;
  std::vector<Segment> run_;
  std::vector<std::array<uint8_t, wire::kHeaderBytes>> bare_;
  std::vector<Endpoint> bare_to_;
  std::unique_ptr<uint8_t[]> scratch_;  // packets whose header was rewritten
  size_t scratch_used_ = 0;
};

}  // namespace switchagg
