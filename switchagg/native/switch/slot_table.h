// The slot machine: admission, the slot rules, counters. No I/O, no clock, no thread, and no allocation after add_job().
// switchagg/rules/slots.py states the rules; tests compare this table with tests/reference/slots.py, packet by packet.
//
//      packet, source  ->  process()  ->  Verdict: nothing | answer one worker | multicast, words to one or all | echo | flush
//                                                  | a parent's RESULT for one worker, or for all
//
// A complete slot is sent from its own memory: result() is a view of its record, header and words. The records of a job
// are contiguous (stride 16 + 4K), so that a run of complete slots is one range of memory.
//
// The slots of a job with shared slots are in memory that its workers may write, and they run the same rules there
// (shared_slots.h). What comes here is taken too, so that a worker that reaches the switch by UDP alone is not left out: it is told
// of rounds that others complete when it retransmits.
//
// Overwriting: the window rule keeps workers from overwriting a slot whose RESULT they lack, but a faulty worker may
// violate it. So a slot is *pending* from the Verdict that names it (multicast or unicast) until flushed(). A packet that
// would overwrite a pending slot changes nothing, is not counted, and gets the Verdict `flush`. The caller must:
//
//      - use views only until flushed();
//      - on Action::flush, send everything outstanding, call flushed(), and process() the packet again: the second
//        Verdict is never `flush`;
//      - call flushed() after sending a batch, and send or discard everything before remove_job().
//
// With several threads, each has a table, and each table the same jobs, but only its own slots (Shard below). A packet for a
// slot of another table changes and counts nothing, and gets the Verdict `stray`. Counts add up over the tables.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/shared_slots.h"

namespace switchagg {

struct WorkerAdmission {
  Endpoint endpoint;
  uint32_t bit = 0;  // 0..31
  uint32_t token = 0;
};

struct ParentAdmission {  // of a leaf: the switch above
  Endpoint endpoint;
  uint32_t token = 0;  // ours there
  uint32_t base = 0;   // of the job there
  uint32_t result_token = 0;
};

struct JobAdmission {  // checked where it is made: switchagg.rules.slots.JobEntry
  uint16_t job = 0;
  uint32_t base = 0, slots = 0, words = 0;
  uint32_t result_token = 0;
  std::vector<WorkerAdmission> workers;
  bool touch = true;
  bool shared = false;  // in memory that the workers may write
  std::optional<ParentAdmission> parent;
};

struct SharedSlotsOffer {  // to a worker of a job with shared slots
  Descriptor memory;
  SharedSlots::Shape shape;
  uint32_t worker = 0;  // which one it is
};

// Blocks of consecutive slots belong to one table after the other. Shared slots are all the first table's.
struct Shard {
  uint32_t index = 0, count = 1;
  uint32_t of(uint32_t slot) const { return slot / wire::kBlockSlots % count; }  // of the switch
};

enum class Action : uint8_t {
  none,           // dropped (see reason), or added to a slot that is not full yet
  multicast,      // send result(job_index, slot) to every endpoint of audience(job_index); where `reader` is not zero, to
                  // the worker with bit `reader` - 1 alone, and bare() to the others
  unicast,        // send it to `to` alone, unless as_stored() by result_with_reply()
  deliver,        // a parent's RESULT: send delivered() to every endpoint of workers(job_index), where `reply` is not
                  // zero to `to` alone
  to_controller,  // send the packet back, unchanged, to the controller
  flush,          // nothing was done: send what is outstanding, call flushed(), and process() this packet again
  stray,          // nothing was done: the packet is for the table with the index `shard`
};

struct Verdict {
  Action action = Action::none;
  uint32_t job_index = 0;
  uint32_t slot = 0;  // within the job: 0..P-1
  Endpoint to{};
  uint16_t reply = 0;
  uint16_t reader = 0;
  uint32_t shard = 0;
  uint8_t op = 0, flags = 0;  // of a retransmission
  wire::DropReason reason = wire::DropReason::none;

  bool as_stored() const { return reply == 0 && !(flags & kEcnFlags); }
};

using Counters = std::array<uint64_t, wire::kCounters>;  // indexed by DropReason and Event
void add_counters(Counters& to, const Counters& from);

struct WorkerOutcomes {
  uint64_t packets = 0;    // admitted
  uint64_t retransmissions = 0;  // of these, with the retransmission flag
  uint64_t misplaced = 0;  // dropped: a slot of the job, but not the one of the seq
  uint64_t outside = 0;    // dropped: a slot of another job, or of none
  uint64_t token = 0;      // dropped: another token
  uint64_t delivered = 0;  // RESULTs of the parent for this worker alone
};

struct JobOutcomes {
  std::array<uint64_t, kOutcomes> outcomes{};
  uint64_t source = 0;   // dropped: from no worker of the job, or from a fenced one
  uint64_t length = 0;   // dropped: not K words
  uint64_t outside = 0;  // INITs dropped: a slot of another job, or of none
  uint64_t delivered = 0;  // RESULTs of the parent for all workers
};

struct JobReport {
  Counters counters{};
  JobOutcomes job;
  std::vector<std::pair<uint32_t, WorkerOutcomes>> workers;  // by bit

  void add(const JobReport& other);  // of the same job in another table
};

class SlotTable {
 public:
  // capacity: slots of all tables together, 1..65536; throws std::invalid_argument.
  explicit SlotTable(uint32_t capacity, Shard shard = {});
  ~SlotTable();
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  // Throws std::invalid_argument if the id is in use, or the range exceeds the capacity or overlaps another job's.
  void add_job(const JobAdmission& job);
  void remove_job(uint16_t job);  // throws std::invalid_argument if there is no such job
  // Drops these workers' packets from now on, as if they were not in the job, or admits them again. Throws
  // std::invalid_argument if there is no such job, or no worker has one of the bits.
  void fence(uint16_t job, uint32_t bits) { set_fenced(job, bits, true); }
  void admit(uint16_t job, uint32_t bits) { set_fenced(job, bits, false); }
  bool admits(uint16_t job, Endpoint worker, uint32_t token) const;  // true if it would take such a worker's packets

  // To a worker that admits() would admit, where its job has shared slots.
  std::optional<SharedSlotsOffer> offer(uint16_t job, Endpoint worker, uint32_t token) const;

  // Puts the records of later jobs into FindableMemory, where workers of this host can read RESULTs.
  void share_records() { shareable_ = true; }

  // Ignores the peer of packets from the controller's port.
  Verdict process(const Received& packet, bool from_controller);
  void flushed() { ++epoch_; }

  // The stored RESULT of a slot that a Verdict named, or a leaf's contribution to its parent; 16 bytes if not filled.
  Segment result(uint32_t job_index, uint32_t slot) const;
  std::span<const Endpoint> workers(uint32_t job_index) const;   // in bit order
  std::span<const Endpoint> audience(uint32_t job_index) const;  // receivers of a full slot: the workers, or a leaf's parent
  // result() with header fields of the retransmission that asked for it. `scratch` has wire::kMaxPacketBytes.
  Segment result_with_reply(const Verdict& verdict, uint8_t* scratch) const;
  // result() without its words, for workers that a directed contribution has not named. `to` has wire::kHeaderBytes.
  void bare(uint32_t job_index, uint32_t slot, uint8_t* to) const;
  std::optional<Endpoint> worker(uint32_t job_index, uint32_t bit) const;
  // The parent's RESULT that gave `verdict`, rewritten for workers, likewise.
  Segment delivered(const Verdict& verdict, const Received& packet, uint8_t* scratch) const;

  // For operators and tests, not per packet. The last two throw std::invalid_argument if there is no such job or slot.
  struct SlotView {
    uint32_t seq, seen;
    bool filled;
    std::span<const uint8_t> words;  // big-endian; empty where nothing is filled
  };
  uint32_t capacity() const { return capacity_; }
  Shard shard() const { return shard_; }
  Counters counters() const;  // since the table was made, with removed jobs
  Counters unknown_job_counters() const { return unattributed_; }  // of these, packets of no job
  JobReport report(uint16_t job) const;
  SlotView slot(uint32_t index) const;    // in the table that owner() says
  uint32_t owner(uint32_t index) const;   // a table's index
  template <typename Function>
  auto with_slot(uint32_t index, Function&& function) const {
    return function(slot(index));
  }

 private:
  struct Job;
  Job* find(uint16_t job) const;
  Job& get(uint16_t job) const;
  const Job& job_of_slot(uint32_t index) const;
  void set_fenced(uint16_t job, uint32_t bits, bool fenced);
  Verdict initialise(Job& job, const wire::Header& header);
  Verdict contribute(Job& job, const wire::Header& header, const uint8_t* words, Endpoint source);
  Effect contribute_shared(Job& job, uint32_t worker, const wire::Header& header, const uint8_t* words);
  Verdict deliver(const wire::Header& header, uint32_t payload, Endpoint source);

  const uint32_t capacity_;
  const Shard shard_;
  bool shareable_ = false;
  uint32_t epoch_ = 1;                      // a slot is pending if it was marked in this epoch
  std::vector<uint16_t> index_of_job_;      // by job id
  std::vector<std::unique_ptr<Job>> jobs_;  // by job index; indices of removed jobs are used again
  Counters unattributed_{};                 // packets of no job
  Counters removed_{};                      // all packets of removed jobs
};

}  // namespace switchagg
