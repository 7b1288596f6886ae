// One worker's engine in one job: a queue of collectives, run in call order over a port. It plans, streams, retransmits
// and decodes; it knows no transport, no Python and no policy.
//
// Who drives: a thread that waits for a collective runs the engine itself, so a synchronous call costs no thread switch.
// A background thread drives collectives that nobody waits for, and sleeps otherwise. One thread drives at a time;
// `mutex_` guards everything and is released while the driver waits for packets.
//
// A change of membership (docs/protocol.md, section 12) puts a new port and a new window under the same queue:
//
//      freeze -> (the ranks agree what is complete) -> finish -> (new admission) -> resume
//
// What is complete counts in call order: a collective's status is told only after those of all before it. Between freeze and
// resume nobody drives, except as far as finish() says. These functions are in engine_change.cpp.
//
// Buffers: a Call's `in`, `out` and `mask` belong to the caller, who keeps them until the collective's status is no
// longer pending, or until abort() has returned.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "switchagg/native/shared/port.h"
#include "switchagg/native/worker/codec.h"
#include "switchagg/native/worker/density.h"
#include "switchagg/native/worker/plan.h"
#include "switchagg/native/worker/policy.h"
#include "switchagg/native/worker/window.h"

namespace switchagg {

struct Membership {  // what the controller told this worker
  uint16_t job = 0;
  uint32_t token = 0, result_token = 0;
  uint32_t base = 0, slots = 0, words = 0, first_seq = 0;
  uint32_t rank = 0, workers = 1;
  Endpoint switch_at;
  uint32_t window_limit = 0;  // packets that the socket buffers hold for this worker
  uint32_t policy = 0;        // the job's policy word at admission: what its first collective follows
};

enum class Status : uint8_t {
  pending = 0,
  done = 1,
  mismatch = 2,
  timeout = 3,
  aborted = 4,
  lost = 5,   // a rank that it needs is gone
  moved = 6,  // a rank had called it before the membership changed, for another number of ranks: nothing was done
};

// A collective is sent in steps, each a range of positions. The header comes first, alone until its RESULT is there. Then
// the tensor's segments, plans a few segments ahead of streams, so that a segment is still in the processor's cache when it
// is quantized after it was scanned, and nobody waits for a plan's round trip (`lead` is 2 here):
//
//      header  plan 0  plan 1  stream 0  plan 2  stream 1  plan 3  stream 2 ...
struct Step {
  enum class Kind : uint8_t { header, plan, stream } kind;
  uint32_t segment;
  uint64_t start, end, results;
};

struct SegmentState {
  Call call;
  std::unique_ptr<Plan> plan;
  std::unique_ptr<Stream> stream;
  bool agreed = false;  // the plan's RESULTs are all there
  std::vector<uint64_t> probed;  // groups whose density is looked at
};

struct Collective {
  Call call;
  int64_t deadline = 0;
  std::atomic<Status> status{Status::pending};
  uint32_t difference[5] = {};  // for a mismatch: the bits of each fingerprint word in which ranks differ
  uint32_t policy = 0;          // rank 0's policy word of this collective
  std::atomic<uint32_t> generation{0};  // of the membership under which it is, or was, carried out
  // Progress, for messages.
  uint64_t packets = 0, results = 0;

 private:
  friend class Engine;
  bool begun = false, opened = false;
  uint64_t index = 0;                 // in its generation
  Status ended = Status::pending;     // its own end; `status` says so when all before it have ended too
  bool header_has_plan = false;       // one packet holds all of the plan
  uint64_t start = 0, end = 0;        // positions given out so far
  uint32_t lead = 0;                  // segments whose plans go out before the first stream
  uint32_t next_step = 0, steps = 0, done_steps = 0;
  std::deque<SegmentState> segments;  // all of them; plan and stream only while in use
  std::deque<Step> active;            // started, results missing; the last one may have packets to send
  uint64_t blocks_union = 0;
  int64_t opened_at = 0, scanned_before = 0;  // when the header's RESULT was there; nanoseconds of scanning until then
};

struct EngineStats {
  uint64_t collectives = 0, data_packets = 0, skip_packets = 0, retransmissions = 0, results = 0, ignored = 0;
  uint64_t completed = 0, elements = 0, bytes_reduced = 0;  // collectives that are done, and their tensors
  uint64_t blocks_total = 0, blocks_own = 0, blocks_union = 0;
  uint64_t positions = 0;  // packets sent for the first time
  int64_t scan_ns = 0, quantize_ns = 0, send_ns = 0, receive_ns = 0, wait_ns = 0, decode_ns = 0;
  int64_t plan_ns = 0;  // waited while all that was under way were plans, the header's RESULT being there
  int64_t busy_ns = 0;  // with a collective under way
  int64_t srtt_ns = 0, rto_ns = 0;
  uint32_t cwnd = 0;
  // Collectives that left something to the skip policy: how many, their elements, and the time from their header's RESULT,
  // when all ranks are there, to their end, with the scanning that had been done by then.
  uint64_t policy_collectives = 0, policy_elements = 0;
  int64_t policy_ns = 0;
  uint32_t policy_word = 0, policy_lanes = 0;  // in force; the narrowest lanes that the last such call allows, 0 for none
  DensityCounts density;
};

class Engine {
 public:
  Engine(std::unique_ptr<Port> port, const Membership& membership);
  ~Engine();

  // Queues a collective; its position in the generation is the order of these calls. `background`: start on it now, before
  // anybody waits for it. False, and nothing done: the engine is no longer in `generation`, for which the call was made.
  bool submit(std::shared_ptr<Collective> work, int64_t timeout_ns, bool background, uint32_t generation);

  // Drives or waits until `work` is no longer pending, or for `slice_ns`.
  Status wait(Collective& work, int64_t slice_ns);

  // Stops beginning and completing collectives, and the background thread from driving. Returns how many of this
  // generation are complete.
  uint64_t freeze();
  // After freeze(): drives or waits until `complete_to` collectives are complete, or for `slice_ns`; none after these is
  // completed. Returns whether that is so; false for ever once the engine is broken.
  bool finish(uint64_t complete_to, int64_t slice_ns);
  // After freeze(), with finish() done: goes on in a new generation, on a new port. `lost`: everything in the queue ends as
  // lost. Otherwise what was not begun is carried out in the new generation. False: the engine is broken.
  bool resume(std::unique_ptr<Port> port, const Membership& membership, bool lost);
  // Rank 0: the next header says that all ranks freeze after its collective. They do so by themselves, and write to the
  // descriptor given to set_pause_eventfd() when they have.
  void request_pause() { pause_requested_ = true; }
  bool pause_requested() const { return pause_requested_; }
  void set_pause_eventfd(int descriptor);
  bool frozen() const { return frozen_; }
  // Frozen, and nothing is left to complete before the change.
  bool is_halted() {
    auto lock = contend();
    return halted();
  }
  uint32_t generation() const { return generation_; }
  // A rank has left this generation after it had begun `begun` collectives: later ones end as lost, now and when called.
  void fail_from(uint64_t begun);
  // Collectives of this generation begun so far.
  uint64_t begun();

  // Ends every collective as aborted; no buffer is touched after this returns. The engine cannot be used any more.
  void abort();
  void close();
  bool broken() const { return broken_; }

  EngineStats stats();
  PortCounters port_counters();
  uint64_t next_position() const { return calls_; }
  // The policy that the next collective to begin follows: the last one that came in a header's RESULT.
  uint32_t policy() const { return policy_; }
  // What this worker's headers carry from now on, if it is rank 0.
  void set_policy(uint32_t word) { policy_sent_ = word; }
  // How long nothing has come from the switch while something was outstanding.
  int64_t silence_ns();
  // In a forked child: forget the parent's sockets and thread; nothing else may be called any more.
  void abandon();

 private:
  std::unique_lock<std::mutex> contend();
  void background();
  void drive(std::unique_lock<std::mutex>& lock, Collective* until, int64_t until_ns);
  bool receive(int64_t now);
  void take(uint64_t position, const uint8_t* payload);
  bool send_new(int64_t now);
  bool resend(int64_t now);
  bool advance();
  void begin(Collective& c);
  bool start_step(Collective& c);
  void step_done(Collective& c, const Step& step);
  void sent_all(const Collective& c);
  void note_policy(const Collective& c);
  uint32_t sendable() const;
  bool build(Collective& c, uint64_t position);
  void transmit();
  void complete(Collective& c, Status status);
  void publish();
  void tell(Collective& c, Status status);
  bool halted() const { return frozen_ && completed_ >= limit_; }
  bool expire(int64_t now);
  void adopt(const Membership& membership);
  bool waits_for_plans() const;
  void break_all(Status status);
  uint8_t* record(uint64_t position) { return ring_ + (position & (membership_.slots - 1)) * stride_; }

  std::unique_ptr<Port> port_;
  Membership membership_;
  uint32_t stride_;
  Window window_;
  uint8_t* ring_;  // the last P packets sent, where retransmissions come from; the port's memory
  std::vector<uint8_t> has_payload_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Collective>> queue_;  // in call order; the front ones may be done sending
  size_t sending_ = 0;                             // index in queue_ of the collective whose packets go out now
  bool driving_ = false, closing_ = false, background_wanted_ = false;
  std::atomic<bool> broken_{false};
  std::atomic<int> contenders_{0};  // threads that want the mutex while somebody drives
  bool abandoned_ = false;
  std::optional<std::thread> thread_;

  uint64_t calls_ = 0;
  // This generation: how many collectives have ended, in call order; how many may while frozen_; the first that needs a rank
  // that has left.
  std::atomic<uint32_t> generation_{0};
  uint64_t completed_ = 0, limit_ = 0, failed_from_ = UINT64_MAX;
  std::atomic<bool> frozen_{false}, pause_requested_{false};
  bool pausing_ = false;  // frozen_ because a header said so, and nobody has been told
  int pause_eventfd_ = -1;
  int64_t busy_since_ = -1;
  uint64_t past_retransmissions_ = 0, past_positions_ = 0;  // of former generations
  PortCounters past_port_;
  // The last finished plan said that under an eighth of the blocks travel. All ranks know the same, so they cut alike.
  bool sparse_ = false;
  int64_t heard_ = 0;
  std::atomic<uint32_t> policy_, policy_sent_;
  DensityProbe probe_;
  int64_t completed_at_ = 0;
  EngineStats stats_;
  std::vector<Received> received_;
  std::vector<uint64_t> accepted_, due_;
  std::vector<Segment> data_, skips_;
};

}  // namespace switchagg
