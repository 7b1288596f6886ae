// One worker's engine in one job: a queue of collectives, run in call order over a port. It plans, streams, retransmits
// and decodes; it knows no transport and no Python, and makes no decisions about policy.
//
// step() does all of the work and never waits: it takes the time, and returns when to call it again. Above it are the
// drivers: a thread that waits for a collective drives the engine itself, so that a synchronous call costs no thread
// switch; a background thread drives collectives that no thread waits for. One thread drives at a time; `mutex_` guards
// all state and is released while the driver waits for packets.
//
// A change of membership (docs/protocol.md, section 12) puts a new port and a new window under the same queue:
//
//      freeze -> (the ranks agree what is complete) -> finish -> (new admission) -> resume
//
// Collectives complete in call order: a status is set only after those of all earlier ones. Between freeze and resume no
// thread drives, except in finish().
//
// When its switch is gone, a job goes on at another one in the same generation (section 13):
//
//      suspend -> (the ranks agree on the lowest packet number that one of them lacks) -> move
//
// Every packet from that number on is sent again as it was, under new tokens; RESULTs that are held are not taken twice.
// Nothing is scanned, rounded or decoded again, so the results have the bits that they would have had.
//
// A job may be dealt to several switches, in stripes (section 16), by weights (deal.h): each stripe has numbers of its own, which
// count from 0 without gaps. A stripe has a port, an admission, a window and retransmissions of its own, and moves to another switch alone. All
// that packets mean is by packet number, and knows no stripes.
//
// Checked (section 14), a RESULT that cannot be the sum is dropped, and asked for again. If the answer is wrong too, the ranks
// have to send the packet again, as to another switch: `damage` says so, through the eventfd. If it still is, the engine breaks.
//
// Sealed (section 15), a generation opens with a collective of the engine's own, in which ranks exchange the nonces that their
// keys are made of. Nothing of any other is sent before it is complete. At another switch the keys stay.
//
// Large sums, and small ones of floats, need no slots in memory that the workers share (shared_sums.h): `summed_` has the segments that are
// not done. They take no numbers, and go on after a move to another switch.
//
// The buffers of a Call belong to the caller, who keeps them until the collective's status is no longer pending, or until
// abort() has returned.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_sums.h"
#include "switchagg/native/shared/wire.h"
#include "switchagg/native/worker/check.h"
#include "switchagg/native/worker/deal.h"
#include "switchagg/native/worker/density.h"
#include "switchagg/native/worker/plan.h"
#include "switchagg/native/worker/seal.h"
#include "switchagg/native/worker/shared_copies.h"
#include "switchagg/native/worker/stream.h"
#include "switchagg/native/worker/window.h"

namespace switchagg {

struct Admission {  // the controller's answer to this worker
  uint16_t job = 0;
  uint32_t token = 0, result_token = 0;
  uint32_t base = 0, slots = 0, words = 0, first_seq = 0;
  uint32_t rank = 0, workers = 1;
  Endpoint switch_at;
  uint32_t window_limit = 0;  // packets for which the socket buffers have room
  uint32_t policy = 0;        // the job's policy word at admission, for its first collective
  std::string link;           // name of the switch's UNIX socket; empty: UDP
  std::vector<uint16_t> receivers;  // of each rank, the `reply` that names it in directed contributions; or empty
  bool shared_slots = false;  // the slots are in memory that the job's workers share; the same at all ranks, also at those that use UDP
  uint32_t threads = 1;       // of the switch, to which blocks of slots are dealt in turn; 0: not known
  uint32_t weight = kMostWeight;  // of several stripes
};

// A way to a switch, and what it was told of this worker.
struct Attachment {
  std::unique_ptr<Port> port;
  Admission admission;
};

enum class Status : uint8_t {
  pending = 0,
  done = 1,
  mismatch = 2,
  timeout = 3,
  aborted = 4,
  lost = 5,   // a rank that it needs was lost or has left
  moved = 6,  // withdrawn: called before a change of membership, for another number of ranks; nothing was done
  damaged = 7,  // a RESULT is not the sum of what ranks have sent, also after they have sent it again
};

// A collective is sent in steps, each a range of packet numbers. The header is sent alone, until its RESULT is there. Plans
// are one segment ahead of streams, so that a segment that was scanned is quantized from the cache, and no rank waits for a
// plan's round trip. Sums within the bound have ranges and rests behind them (refinement.h), one and two segments later:
//
//      header  plan 0  plan 1  stream 0  plan 2  stream 1  plan 3  stream 2 ...
//      header  plan 0  plan 1  stream 0  plan 2  stream 1  ranges 0  plan 3  stream 2  ranges 1  rest 0 ...
//
// Before the stream there may be the exponents (sequence.h) and marks (refinement.h).
struct Step {
  enum class Kind : uint8_t { header, plan, exponents, marks, stream, ranges, rest } kind;
  bool sums() const { return kind == Kind::stream || kind == Kind::rest; }
  uint32_t segment;
  uint64_t start, end, results;
};

// Step `number` of each segment.
Step::Kind kind_of_step(const Call& call, uint32_t number);

// By number of elements: whether the union of the last collective that skipped zero blocks was sparse, or all blocks, as all ranks know.
class LastUnions {
 public:
  // The union of this call is expected to be sparse. Of the first one of its size, the call itself may say so.
  bool sparse(const Call& call) const {
    const auto last = last_.find(call.count);
    return call.sparse && (last == last_.end() ? !call.auto_zeros : last->second.sparse);
  }
  // Expected to be all blocks.
  bool whole(const Call& call) const {
    const auto last = last_.find(call.count);
    return !call.sparse || (last != last_.end() && last->second.whole);
  }
  void note(const Call& call, uint64_t blocks) {
    if (last_.size() == kSizes && !last_.contains(call.count)) last_.clear();
    last_[call.count] = {blocks * 8 < call.blocks(), blocks == call.blocks()};
  }
  void clear() { last_.clear(); }

 private:
  static constexpr size_t kSizes = 64;
  struct Last {
    bool sparse, whole;
  };
  std::map<uint64_t, Last> last_;
};

struct SegmentState {
  Call call;
  std::unique_ptr<Plan> plan;
  std::unique_ptr<Sequence> sequence;
  std::unique_ptr<Marks> marks;
  std::unique_ptr<Stream> stream;
  uint32_t steps_done = 0;
  uint64_t early_unit = 0, early = 0;  // in records from that unit on already: so many elements
  std::vector<uint64_t> probed;  // groups whose density is sampled
  Digest digest{};               // with check words: of what the ranks have agreed on, for the step that is sent
};

struct Collective {
  Call call;
  int64_t deadline = 0;
  std::atomic<Status> status{Status::pending};
  // Nanoseconds of the monotonic clock; 0: not yet. Begun: its turn has come. Opened: the header's RESULT is there, and so
  // every rank has begun it.
  std::atomic<int64_t> submitted_at{0}, begun_at{0}, opened_at{0}, ended_at{0};
  uint32_t difference[5] = {};  // for a mismatch: the bits of each fingerprint word in which ranks differ
  uint32_t policy = 0;          // rank 0's policy word of this collective
  std::atomic<uint32_t> generation{0};  // in which it is carried out
  // Progress, for messages.
  uint64_t packets = 0, results = 0;
  // Of retransmissions: when, and how many packets. Read once it has ended.
  struct Again {
    int64_t at;
    uint64_t packets;
  };
  std::vector<Again> again;

 private:
  friend class Engine;
  bool begun = false, opened = false;
  uint64_t index = 0;                 // in its generation
  Status ended = Status::pending;     // its own end; becomes `status` when all earlier ones have ended
  bool header_has_plan = false;       // one packet holds all of the plan
  Digest digest{};                    // of its header
  bool exchange = false;              // the engine's own: of the ranks' nonces
  uint64_t start = 0, end = 0;        // packet numbers assigned so far
  uint32_t next_step = 0, steps = 0, done_steps = 0;
  uint32_t turn = 0, lag = 0;         // of the next step after the header: it is of segment turn - lag
  std::deque<SegmentState> segments;  // all of them; plan and stream only while in use
  std::deque<Step> active;            // started, results missing; the last one may have packets to send
  uint64_t blocks_union = 0;
  int64_t scanned_before = 0;  // nanoseconds of scanning until it was opened
};

struct EngineStats {
  uint64_t collectives = 0, data_packets = 0, skip_packets = 0, retransmissions = 0, results = 0, ignored = 0;
  uint64_t completed = 0, elements = 0, bytes_reduced = 0;  // collectives that are done, and their tensors
  uint64_t blocks_total = 0, blocks_own = 0, blocks_union = 0;
  // Of those elements: in exact sums, in bounded sums, and of the latter those that took more words.
  uint64_t exact_elements = 0, bounded_elements = 0, refined_elements = 0;
  uint64_t packet_numbers = 0;  // packets sent for the first time
  uint64_t damaged = 0;         // RESULTs that could not be right
  uint64_t marked = 0;          // RESULTs with CE
  int64_t scan_ns = 0, quantize_ns = 0, send_ns = 0, receive_ns = 0, wait_ns = 0, decode_ns = 0;
  int64_t plan_ns = 0;  // waited for plans only, after the header's RESULT
  int64_t busy_ns = 0;  // with a collective in progress
  int64_t srtt_ns = 0, rto_ns = 0;
  uint32_t cwnd = 0;
  // Collectives that left fields to the policy: their number, their elements, and the time from the header's RESULT, when
  // all ranks have called them, to their end, plus the scanning before it.
  uint64_t policy_collectives = 0, policy_elements = 0;
  int64_t policy_ns = 0;
  uint32_t policy_word = 0, policy_lanes = 0;  // in force; the narrowest lanes that the last such call allowed, or 0
  DensityCounts density;
};

// Handed to an engine besides its port. The clock serves deadlines that begin with a call, and statistics.
struct Surroundings {
  Clock clock = now_ns;
  bool background_thread = true;  // false: whoever looks at wants_driver() drives, by step()
  bool checked = false;           // packets have check words, in every generation
  bool shared_links = false;      // congestion windows follow losses
  std::vector<uint8_t> secret;    // of all ranks: sums are sealed; empty: they are not
};

class Engine {
 public:
  // `more`: stripes 1 and up.
  Engine(std::unique_ptr<Port> port, const Admission& admission, Surroundings surroundings = {}, std::vector<Attachment> more = {});
  ~Engine();

  // Does the next thing that there is to do, without waiting. `arrived`: the port may hold packets. Returns when to call it
  // again: at once (0), or when packets arrive, but not after that time (INT64_MAX: no limit). For one thread at a time,
  // which is not in any other call, in the default floating-point environment. wait(), finish() and the background thread
  // call it.
  int64_t step(int64_t now, bool arrived);
  // True if there is work for step() that no thread waits for.
  bool wants_driver() {
    auto lock = contend();
    return background_wanted_ && has_work();
  }

  // Queues a collective and numbers it in the order of these calls. `background`: start it now, before a thread waits for
  // it. False, without effect: the engine is no longer in `generation`, for which the call was made.
  bool submit(std::shared_ptr<Collective> work, int64_t timeout_ns, bool background, uint32_t generation);
  // The same without waiting for other threads. False also where one of them has the engine, or it is broken.
  bool submit_at_once(std::shared_ptr<Collective> work, int64_t timeout_ns, uint32_t generation);

  // Drives or waits until `work` is no longer pending, or for `slice_ns`.
  Status wait(Collective& work, int64_t slice_ns);

  // Stops beginning and completing collectives, and the background thread from driving. Returns how many of this
  // generation are complete.
  uint64_t freeze();
  // After freeze(): drives or waits until `complete_to` collectives are complete, and no more, or for `slice_ns`. True if
  // they are; always false if the engine is broken.
  bool finish(uint64_t complete_to, int64_t slice_ns);
  // After freeze() and finish(): continues in a new generation, on a new port. `lost`: all queued collectives end as lost.
  // Otherwise those that have not begun are carried out in the new generation. False: the engine is broken.
  bool resume(std::unique_ptr<Port> port, const Admission& admission, bool lost, std::vector<Attachment> more = {});
  // Stops sending and receiving. Returns of each stripe the lowest number whose RESULT is missing.
  std::vector<uint64_t> suspend();
  // After suspend(): a stripe continues on another switch, on a new port, with contributions from its number `first` on. With
  // `more` the engine stays suspended, until other stripes have moved too. False: the engine is broken. Throws
  // std::invalid_argument for a stripe, P, K or a number that cannot be.
  bool move(std::unique_ptr<Port> port, const Admission& admission, uint64_t first, uint32_t stripe = 0, bool more = false);
  // True from suspend() until this worker holds the RESULTs of all that it had sent before.
  bool recovering() {
    auto lock = contend();
    return !broken_ && (suspended_ || replaying());
  }
  // True from move() until this worker holds the new switch's RESULTs of all that it sends again, and so all workers have sent that. Of
  // an engine that is halted or broken, only until it holds those of complete collectives: no worker needs any others of it.
  bool is_replaying() {
    auto lock = contend();
    return broken_ || halted() ? first_missing(lowest_stripe()) < completed_end_ : replaying();
  }
  // The packet number whose RESULT was damaged twice, until move(); or for good, if the engine is broken by it.
  std::optional<uint64_t> damage() {
    auto lock = contend();
    return damage_;
  }
  // The lowest packet number of which the RESULTs so far were wrong; also before this worker has asked for it twice. No header's,
  // in which ranks may only have called different things.
  std::optional<uint64_t> unhealed();
  // On rank 0: the next header makes all ranks freeze after its collective. When an engine has, it signals the eventfd
  // that set_pause_eventfd() gave.
  void request_pause() { pause_requested_ = true; }
  bool pause_requested() const { return pause_requested_; }
  void set_pause_eventfd(int descriptor);
  bool frozen() const { return frozen_; }
  // True if the engine is frozen, and nothing is left to complete before the change.
  bool is_halted() {
    auto lock = contend();
    return halted();
  }
  uint32_t generation() const { return generation_; }
  // Ends collectives from number `begun` on as lost, also those called later: a rank left after it had begun `begun`.
  void fail_from(uint64_t begun);
  // Collectives of this generation so far that are begun, and that are complete.
  uint64_t begun();
  uint64_t completed() {
    auto lock = contend();
    return completed_;
  }

  // Ends every collective as aborted. No buffer is used after this returns, and the engine accepts no more calls.
  void abort();
  void close();
  bool broken() const { return broken_; }

  EngineStats stats();
  PortCounters port_counters();
  // Of each stripe, what its present port's switch has refused.
  std::vector<uint64_t> refused();
  // Of each stripe, its weight now; and the stripe that a packet is dealt to, with its number there.
  std::vector<uint32_t> weights();
  std::pair<uint32_t, uint64_t> dealt(uint64_t packet_number);
  uint64_t calls() const { return calls_; }
  // The policy of the next collective to begin: the last one in a header's RESULT.
  uint32_t policy() const { return policy_; }
  // Sets the policy in this worker's headers, if it is rank 0.
  void set_policy(uint32_t word) { policy_sent_ = word; }
  // Nanoseconds since the last RESULT, or step of a sum without slots, while one is outstanding, of a collective from number
  // `completed` on.
  int64_t silence_ns(uint64_t completed);
  // A bit for each rank that a sum without slots waits for; of a broken engine, when it broke.
  uint32_t late() {
    auto lock = contend();
    return summed_.empty() ? late_ : sums_->late();
  }
  // Of a broken engine: asks the switch, by a packet without words, for the RESULT before the first that is lacking. Before any
  // has come, that has no words either. True if it comes within `timeout_ns`: small packets reach the switch.
  bool probe(int64_t timeout_ns);
  // In a forked child: closes the inherited sockets and forgets the thread. Call nothing else afterwards.
  void abandon();

 private:
  // The packets that go to one switch, by their numbers there, with a window of their own.
  struct Stripe {
    Stripe(Attachment way, uint32_t batch, size_t stride, bool shared_links, uint64_t first = 0);
    bool replaying() const { return window.base() < replay_end; }
    bool has_replays() const { return window.next() < replay_end; }
    uint64_t end() const { return std::max(window.next(), replay_end); }
    uint32_t room() const { return std::min(window.room(), window.train()); }
    size_t index(uint64_t number) const { return number & (at.slots - 1); }
    uint32_t seq(uint64_t number) const { return at.first_seq + static_cast<uint32_t>(number); }
    uint8_t* record(uint64_t number, size_t stride) const { return ring + size_t{seq(number) & (at.slots - 1)} * stride; }
    void push(uint64_t number, size_t stride, uint32_t used);
    void transmit();
    void address(wire::Header& header, uint64_t number) const;
    void readdress(uint64_t number, size_t stride);
    void direct(wire::Header& header, uint64_t number) const;

    std::unique_ptr<Port> port;
    Admission at;
    Window window;
    uint8_t* ring;  // the last P packets sent, for retransmissions, by slot; the port's memory
    std::vector<uint8_t> has_payload;
    std::vector<uint16_t> readers;  // of these, the rank + 1 that alone needs the words of the RESULT; 0: all do
    // Numbers below this one were sent before the move to this switch; of these, by slot: the RESULT was held then.
    uint64_t replay_end = 0;
    std::vector<uint8_t> held;
    std::vector<Segment> data, skips;  // to be sent together
  };

  std::unique_lock<std::mutex> contend();
  bool add(std::shared_ptr<Collective> work, int64_t timeout_ns, bool background, uint32_t generation);
  void begin_background();
  void background();
  int64_t pause(int64_t now);
  int64_t until_timer(int64_t now);
  void drive(std::unique_lock<std::mutex>& lock, Collective* until, int64_t until_ns);
  bool receive(int64_t now);
  void on_result(uint64_t packet_number, const uint8_t* payload, bool decoded);
  void on_ce(Stripe& stripe, uint64_t number, int64_t now);
  Collective* find(uint64_t packet_number, size_t* index);
  bool is_right(uint64_t packet_number, const uint8_t*& payload, bool& decoded);
  bool is_right_or(const Step& step, uint64_t packet_number, const uint8_t* payload);
  void on_damaged(uint64_t packet_number, int64_t now);
  void break_damaged(uint64_t packet_number);
  bool send_new(int64_t now);
  bool may_sum(const Call& call) const;
  bool sums_without_slots(const SegmentState& s) const;
  bool sums_floats(const SegmentState& s) const;
  bool expects_floats(const Call& call) const;
  void start_sum(Collective& c, const Step& step);
  bool scan_and_put(Collective& c, uint32_t segment);
  static size_t bytes_to_scan(const Collective& c, const Call& segment);
  void encode(Stream& stream, uint64_t packet, uint32_t* to);
  void add(Stream& stream, uint64_t packet, uint64_t unit, uint64_t place, bool past);
  bool packets_are_copied() const { return payload_words() >= SharedCopies::kLeast; }  // others go through the cache
  bool sum(int64_t now);
  void count_as_packets(uint64_t data, uint64_t skips, uint64_t results);
  void forget_sums(const Collective& c);
  bool retransmit(int64_t now);
  void push_again(uint64_t packet_number, int64_t now);
  void note_again(uint64_t packet_number, int64_t now);
  bool advance();
  void begin(Collective& c);
  uint64_t segment_elements(const Call& call) const;
  bool start_step(Collective& c);
  void step_done(Collective& c, const Step& step);
  void on_all_sent(const Collective& c);
  void note_policy(const Collective& c);
  uint32_t sendable() const;
  bool can_send() const;
  void build(Collective& c, uint64_t packet_number, Deal::Place at);
  void transmit();
  void complete(Collective& c, Status status);
  void publish();
  void set_status(Collective& c, Status status);
  uint64_t count_begun() const;
  bool halted() const { return frozen_ && completed_ >= limit_; }
  bool replaying() const { return std::ranges::any_of(stripes_, &Stripe::replaying); }
  bool has_replays() const { return std::ranges::any_of(stripes_, &Stripe::has_replays); }
  uint32_t batch() const;  // packets in one
  bool has_work() const { return !broken_ && !suspended_ && (replaying() || (!queue_.empty() && !halted())); }
  bool expire(int64_t now);
  void adopt(std::unique_ptr<Port> port, const Admission& admission, std::vector<Attachment> more);
  void attach(std::unique_ptr<Port> port, const Admission& admission, std::vector<Attachment> more);
  void wait_for_all();
  void forget(const Stripe& stripe);
  bool receive(Stripe& stripe, int64_t now);
  void note_waiting(int64_t now, uint64_t sent);
  // The stripe that a packet is dealt to, and its number there; the reverse. One stripe costs no division.
  Deal::Place place_of(uint64_t packet_number) const {
    return stripes_.size() == 1 ? Deal::Place{0, packet_number} : deal_.place(packet_number);
  }
  uint32_t turn_of(uint64_t packet_number) const { return place_of(packet_number).stripe; }
  uint64_t packet_number_of(const Stripe& stripe, uint64_t number) const {
    return stripes_.size() == 1 ? number : deal_.packet_number(static_cast<uint32_t>(&stripe - stripes_.data()), number);
  }
  // The lowest packet number whose RESULT of the present switch is missing; the stripe where that is least.
  uint64_t first_missing(const Stripe& stripe) const { return packet_number_of(stripe, stripe.window.base()); }
  const Stripe& lowest_stripe() const {
    return *std::ranges::min_element(stripes_, {}, [this](const Stripe& each) { return first_missing(each); });
  }
  void make_check();
  void wipe_keys();
  void exchange_nonces();
  void make_seal(const Collective& exchange);
  const PacketCheck& check_of(const Collective& c) const { return c.call.sealed ? *sealed_check_ : *check_; }
  bool awaits_seal(const Collective& c) const { return !secret_.empty() && !seal_ && !c.exchange; }
  // Of callers' collectives, from 0; they round at random by it, sealed or not.
  uint32_t call_number(uint64_t index) const { return static_cast<uint32_t>(index) - (secret_.empty() ? 0 : 1); }
  int64_t deadline() const;  // of the first collective that has one
  uint32_t payload_words() const {
    return admission_.words - (!secret_.empty() ? PacketCheck::kSealedWords : checked_ ? PacketCheck::kWords : 0);
  }
  bool waits_for_plans() const;
  int64_t loss_timer() const;  // -1: nothing is outstanding
  uint32_t outstanding() const;
  void break_all(Status status);
  void wake() { stripes_[0].port->wake(); }

  const Clock clock_;
  const bool background_thread_;
  Admission admission_;  // of stripe 0, when the generation began
  uint32_t stride_;
  const bool checked_, shared_links_;
  std::vector<uint8_t> secret_;  // zeros once the engine is closed
  std::optional<PacketCheck> check_, sealed_check_;
  std::optional<Seal> seal_;
  std::vector<Nonce> nonces_;
  Nonce nonce_{};
  PacketMemory aside_;  // words of one packet: without its pad, or of the last one of a round
  // Packet numbers whose RESULTs were damaged, and how often at this switch; those sent again by all ranks for that.
  std::map<uint64_t, uint32_t> damaged_;
  std::set<uint64_t> replayed_;
  std::optional<uint64_t> damage_;
  std::vector<Stripe> stripes_;
  Deal deal_{{kMostWeight}, 0};
  bool moved_ = false;  // of the generation: a stripe has
  struct Summed {  // a segment that goes without slots, and is not done
    Collective* collective;
    Step step;
    bool floats;           // its units are of elements; else of packets
    bool whole;            // its only unit is
    uint64_t unit, end;    // numbers
    uint64_t parts, each;  // how many elements or packets; how many of them in a unit
  };
  std::shared_ptr<SharedSums> sums_;  // of the generation, at whatever switch; null: none
  std::deque<Summed> summed_;
  SharedCopies copies_{clock_};
  uint32_t late_ = 0;
  std::optional<StripeRates> rates_;  // of several stripes, on rank 0
  uint64_t next_packet_ = 0;  // the number of the next packet that is built
  bool suspended_ = false;
  bool directs_ = false;  // of the generation, at whatever switch

  // Between two steps. Reading costs a system call, which matters for small collectives, so the engine reads only between
  // two batches, after a wait, and before it acts on a timer.
  enum class Next : uint8_t { send, receive, retransmit };
  Next next_ = Next::send;
  bool unread_ = true;  // the port may hold packets
  bool more_ = false;   // there was more to send, or to prepare, after the last batch

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Collective>> queue_;  // in call order; the front ones may be done sending
  size_t sending_ = 0;                             // index in queue_ of the collective whose packets go out now
  bool driving_ = false, closing_ = false, background_wanted_ = false;
  std::atomic<bool> broken_{false};
  std::atomic<int> contenders_{0};  // threads that want the mutex while another one drives
  bool abandoned_ = false;
  std::optional<std::thread> thread_;

  uint64_t calls_ = 0;
  // Of this generation: collectives that ended, in call order; the limit of these while frozen_; the first that needs a
  // rank that has left.
  std::atomic<uint32_t> generation_{0};
  uint64_t completed_ = 0, limit_ = 0, failed_from_ = UINT64_MAX;
  uint64_t completed_end_ = 0;  // the packet number after those of the collectives that ended
  uint64_t begun_before_break_ = 0;
  std::atomic<bool> frozen_{false}, pause_requested_{false};
  bool pausing_ = false;  // frozen_ by a header, and pause_eventfd_ was not signalled yet
  int pause_eventfd_ = -1;
  int64_t busy_since_ = -1;
  uint64_t past_retransmissions_ = 0, past_packets_ = 0;  // of former generations
  PortCounters past_port_;
  LastUnions unions_;
  int64_t last_result_ = 0;
  std::atomic<uint32_t> policy_, policy_sent_;
  DensityProbe probe_;
  int64_t completed_at_ = 0;
  EngineStats stats_;
  std::vector<Received> received_;
  std::vector<uint64_t> accepted_, lost_;
  std::vector<uint32_t> rooms_;  // of stripes, in send_new()
};

}  // namespace switchagg
