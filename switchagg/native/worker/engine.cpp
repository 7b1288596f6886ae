#include "switchagg/native/worker/engine.h"

#include <algorithm>
#include <cfenv>
#include <utility>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg {
namespace {

// The lanes need IEEE arithmetic; callers may have set flush-to-zero or another rounding mode.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { fesetenv(&saved_); }

 private:
  fenv_t saved_;
};

constexpr int64_t kAtOnce = 0;             // returned by step()
constexpr uint64_t kScanBudget = 1 << 20;  // elements scanned before the engine checks the clock and the port
// Elements a segment. A dense segment is quantized from the cache after its scan; of a sparse one little is read again, so it
// is large.
constexpr uint64_t kDenseSegment = 1 << 19, kSparseSegment = 1 << 24;
// If few ranks share slots, of tensors of more than two such segments; many take less time with fewer plans.
constexpr uint64_t kSharedSegment = 1 << 17;
constexpr uint32_t kFewRanks = 8;
constexpr size_t kSummed = 3;        // segments without slots at a time
constexpr int64_t kLook = 100'000;   // between looks at them where nobody wakes this worker
// Bytes. Results of so many are written with nontemporal stores, unless they replace the input, which was read shortly before.
constexpr uint64_t kNontemporal = 16 << 20;

// Of steps of each segment.
uint32_t kinds_of_steps(const Call& call) {
  return 2 + call.exponents_apart() + call.has_marks() + (call.bits == kBounded ? 2 : 0);
}

}  // namespace

Step::Kind kind_of_step(const Call& call, uint32_t number) {
  using enum Step::Kind;
  constexpr Step::Kind kinds[] = {plan, exponents, marks, stream, ranges, rest};
  if (number > 0 && !call.exponents_apart()) ++number;
  if (number > 1 && !call.has_marks()) ++number;
  return kinds[number];
}

Engine::Engine(std::unique_ptr<Port> port, const Admission& admission, Surroundings surroundings, std::vector<Attachment> more)
    : clock_(surroundings.clock),
      background_thread_(surroundings.background_thread),
      admission_(admission),
      stride_(wire::kHeaderBytes + 4 * admission.words),
      checked_(surroundings.checked || !surroundings.secret.empty()),
      shared_links_(surroundings.shared_links),
      secret_(std::move(surroundings.secret)),
      policy_(Policy::valid(admission.policy) ? admission.policy : Policy::kValid | 64),
      policy_sent_(policy_.load()) {
  received_.reserve(1024);
  attach(std::move(port), admission, std::move(more));
  make_check();
  exchange_nonces();
}

uint32_t Engine::batch() const {
  return static_cast<uint32_t>(std::max<size_t>(1, std::min(kMaxSegments, kMaxBatchBytes / stride_)));
}

Engine::~Engine() {
  if (!abandoned_) close();
}

EngineStats Engine::stats() {
  auto lock = contend();
  EngineStats s = stats_;
  s.retransmissions = past_retransmissions_;
  s.packet_numbers = past_packets_ + next_packet_;
  if (busy_since_ >= 0) s.busy_ns += clock_() - busy_since_;
  for (const Stripe& each : stripes_) {
    s.retransmissions += each.window.retransmissions();
    s.srtt_ns = std::max(s.srtt_ns, each.window.srtt());
    s.rto_ns = std::max(s.rto_ns, each.window.rto());
    s.cwnd += each.window.cwnd();
  }
  s.policy_word = policy_;
  s.density = probe_.counts();
  return s;
}

int64_t Engine::silence_ns(uint64_t completed) {
  auto lock = contend();
  const bool waits = broken_ || (!queue_.empty() && queue_.front()->index >= completed);
  if (!waits || last_result_ == 0) return 0;
  return clock_() - last_result_;
}

void Engine::break_all(Status status) {
  begun_before_break_ = count_begun();
  if (!summed_.empty()) {
    late_ = sums_->late();
    sums_->stop(0);
  }
  summed_.clear();
  for (auto& c : queue_) set_status(*c, status);
  queue_.clear();
  sending_ = 0;
  publish();
  changed_.notify_all();
}

// Breaks the engine and returns true if the first collective's deadline has passed.
bool Engine::expire(int64_t now) {
  if (now < deadline()) return false;
  broken_ = true;
  break_all(Status::timeout);
  return true;
}

// True if only plans are in flight, and all ranks have called the collective: the engine waits for the network.
bool Engine::waits_for_plans() const {
  if (!summed_.empty()) return false;
  for (const auto& c : queue_) {
    if (!c->begun || c->ended != Status::pending) continue;
    if (!c->opened) return false;
    for (const Step& step : c->active)
      if (step.sums()) return false;
    if (!c->active.empty()) return true;
  }
  return false;
}

// Runs the engine until `until` is finished, nothing is left, or the clock reaches `until_ns`. Enters and leaves with
// the lock held.
void Engine::drive(std::unique_lock<std::mutex>& lock, Collective* until, int64_t until_ns) {
  const DefaultArithmetic arithmetic;
  driving_ = true;
  bool arrived = true;
  int64_t now = clock_();
  while (has_work() && !closing_ && (!until || until->status == Status::pending) && now < until_ns) {
    const int64_t limit = std::min(step(now, arrived), until_ns);
    arrived = false;
    if (!has_work() || (until && until->status != Status::pending)) break;
    if (contenders_.load()) {
      lock.unlock();
      while (contenders_.load()) std::this_thread::yield();
      lock.lock();
    } else if (limit > now) {
      const bool planning = waits_for_plans();
      lock.unlock();
      arrived = stripes_[0].port->wait(std::min<int64_t>(limit - now, 1000000000));
      lock.lock();
      const int64_t woke = clock_();
      stats_.wait_ns += woke - now;
      if (planning) stats_.plan_ns += woke - now;
      now = woke;
      continue;
    }
    now = clock_();
  }
  driving_ = false;
  // Somebody else may have work left, or be waiting for what was finished here.
  changed_.notify_all();
}

int64_t Engine::step(int64_t now, bool arrived) {
  unread_ |= arrived;
  if (expire(now)) return INT64_MAX;
  if (!has_work()) return deadline();
  if (next_ == Next::send) {
    if (last_result_ == 0 || (outstanding() == 0 && summed_.empty())) last_result_ = now;
    bool stepped = sum(now);  // before the next collective's header may leave (SharedSums::next)
    stepped |= advance();
    const bool sent = send_new(now);
    more_ = stepped || (sent && can_send());
    if (!more_ && !unread_) return pause(now);
    next_ = Next::receive;
    return kAtOnce;
  }
  const Next what = std::exchange(next_, Next::send);
  const bool received = receive(now);
  unread_ = false;  // send first, and read again when there is nothing else to do
  if (received || (what == Next::receive ? more_ : retransmit(now))) return kAtOnce;
  return what == Next::receive ? pause(now) : until_timer(now);
}

// There is nothing to send, nor to read. A look at timers comes after one more at the port.
int64_t Engine::pause(int64_t now) {
  const int64_t timer = loss_timer();
  const auto gaps = [](const Stripe& each) { return !each.port->reliable() && each.window.gaps(); };
  if ((timer < 0 || timer > now) && std::ranges::none_of(stripes_, gaps)) return until_timer(now);
  next_ = Next::retransmit;
  return kAtOnce;
}

int64_t Engine::until_timer(int64_t now) {
  const bool looks = !summed_.empty() && stripes_[0].port->sums() != sums_;  // since a move, after which nobody wakes this worker
  stripes_[0].port->set_busy_poll(outstanding() <= stripes_[0].window.batch() && !looks);
  const int64_t timer = loss_timer();
  int64_t deadline = this->deadline();
  if (looks) deadline = std::min(deadline, now + kLook);
  return std::max(timer < 0 ? deadline : std::min(timer, deadline), now + 1);
}

// Takes the sending collective to its next step where that needs no packet. True if something was done.
bool Engine::advance() {
  if (sending_ >= queue_.size() || has_replays()) return false;
  Collective& c = *queue_[sending_];
  if ((frozen_ && c.index >= limit_) || awaits_seal(c)) return false;
  if (!c.begun) begin(c);
  if (!c.active.empty() && next_packet_ < c.active.back().end) return false;  // packets to send first
  if (c.next_step == c.steps) {
    if (!c.opened) return false;  // whether ranks agree decides what comes next, also of a call that is all header
    on_all_sent(c);
    return true;
  }
  return start_step(c);
}

void Engine::on_all_sent(const Collective& c) {
  if (c.call.sparse && c.call.count > 0) unions_.note(c.call, c.blocks_union);
  ++sending_;
}

void Engine::begin(Collective& c) {
  c.begun = true;
  c.begun_at = clock_();
  c.start = c.end = next_packet_;
  c.call.pause = admission_.rank == 0 && pause_requested_.exchange(false);
  if (rates_) c.call.weight = rates_->next(deal_.weights());
  c.call.checked = checked_;
  c.call.sealed_job = !secret_.empty();
  c.call.sealed = seal_.has_value() && !c.exchange;
  c.call.resolve_disjoint();
  if (c.call.sealed && c.call.wraps()) c.call.bits = 64;  // so that no word of a sum overflows
  // Every header before this one has its RESULT, the same at all ranks, so all settle the call alike.
  Policy::resolve(c.call, policy_);
  // Checks are of words that every rank has.
  c.call.directed = !checked_ && !c.call.memory && directs_ && c.call.count >= kLeastDirected &&
                    c.call.part > 0 && c.call.reader + (c.call.count - 1) / c.call.part < c.call.workers;
  c.call.policy = policy_sent_;
  c.call.nontemporal = c.call.in != c.call.out && (c.call.out_end - c.call.out_begin) * c.call.element_bytes() >= kNontemporal;
  const uint64_t each = c.call.kind == Kind::no_op ? std::max<uint64_t>(c.call.count, 1)
                                                   : segment_elements(c.call);
  for (uint64_t from = 0; from < c.call.count && !c.call.withdrawn; from += each)
    c.segments.emplace_back().call = c.call.segment(from, std::min(each, c.call.count - from));
  const uint64_t segments = c.segments.size();
  c.header_has_plan = segments == 1 && kPlanHeaderWords + c.call.rest_words() <= payload_words();
  c.steps = static_cast<uint32_t>(1 + kinds_of_steps(c.call) * segments);
  if (!c.call.withdrawn) stats_.blocks_total += c.call.blocks();
}

// The same at all ranks.
uint64_t Engine::segment_elements(const Call& call) const {
  if (unions_.sparse(call)) return call.segment_elements(kSparseSegment);
  // Both sizes cut chunks alike.
  const bool small = admission_.shared_slots && admission_.workers <= kFewRanks && call.kind == Kind::allreduce && call.count > 2 * kSharedSegment &&
                     kSharedSegment % (32 * uint64_t{call.block}) == 0;
  return call.segment_elements(small ? kSharedSegment : kDenseSegment);
}

// Starts the next step if it can: a plan needs its segment scanned, others need the RESULTs of the step before, and all need
// the header's RESULT.
bool Engine::start_step(Collective& c) {
  Step step{Step::Kind::header, 0, 0, 0, 0};
  if (c.next_step > 0) step = {kind_of_step(c.call, c.lag), c.turn - c.lag, 0, 0, 0};
  uint64_t packets = 1;
  bool summed = false;
  const int64_t before = clock_();
  if (step.kind == Step::Kind::plan || (step.kind == Step::Kind::header && c.header_has_plan)) {
    SegmentState& s = c.segments[step.segment];
    if (!s.plan) {
      s.plan = std::make_unique<Plan>(s.call, payload_words(), c.header_has_plan);
      if (c.call.auto_zeros) s.probed = probe_.sample_input(s.call, step.segment);
    }
    if (s.plan && !s.plan->scanned()) {
      if (!scan_and_put(c, step.segment)) s.plan->scan(kScanBudget);
      const int64_t spent = clock_() - before;
      stats_.scan_ns += spent;
      if (!c.opened) c.scanned_before += spent;
      return true;
    }
  }
  if (step.kind != Step::Kind::header) {
    SegmentState& s = c.segments[step.segment];
    if (!c.opened || s.steps_done < c.lag) return false;
    if (step.kind == Step::Kind::stream && summed_.size() >= kSummed) return false;
    const Plan* plan = c.call.kind == Kind::no_op ? nullptr : s.plan.get();
    if (c.lag == 1) s.sequence = std::make_unique<Sequence>(s.call, plan, payload_words());
    if (step.kind == Step::Kind::plan) {
      packets = c.header_has_plan ? 0 : s.plan->packets();
    } else if (step.kind == Step::Kind::exponents) {
      packets = s.sequence->packets();
    } else if (step.kind == Step::Kind::marks) {
      s.marks = std::make_unique<Marks>(s.call, *s.sequence, payload_words());
      packets = s.marks->packets();
    } else if (step.kind == Step::Kind::ranges) {
      packets = s.stream->refinement().open_ranges();
    } else if (step.kind == Step::Kind::rest) {
      packets = s.stream->refinement().open_rest();
      if (checked_) s.digest = check_of(c).extended(s.digest, s.stream->refinement().ranges());
      stats_.refined_elements += s.stream->refinement().elements().size();
    } else {
      s.stream = std::make_unique<Stream>(s.call, plan, *s.sequence, s.marks.get(), payload_words());
      if (checked_ && plan) {
        s.digest = check_of(c).extended(c.digest, plan->agreed());
        s.digest = check_of(c).extended(s.digest, s.sequence->exponents());
      }
      summed = sums_without_slots(s);
      packets = summed ? 0 : s.stream->packets();
      c.blocks_union += s.sequence->union_blocks();
      stats_.blocks_union += s.sequence->union_blocks();
      stats_.blocks_own += s.call.sparse ? s.plan->own_blocks() : s.call.blocks();
    }
    stats_.scan_ns += clock_() - before;
  }
  if (c.next_step++ > 0) {
    const uint32_t kinds = kinds_of_steps(c.call);
    do {
      if (++c.lag == kinds) {
        c.lag = 0;
        ++c.turn;
      }
    } while (c.next_step < c.steps && c.turn - c.lag >= c.segments.size());  // also if it is negative
  }
  step.start = next_packet_;
  step.end = step.start + packets;
  c.end = step.end;
  c.packets += packets;
  if (packets > 0) {
    c.active.push_back(step);
  } else if (summed) {
    start_sum(c, step);
  } else {
    step_done(c, step);
  }
  return true;
}

// A step has all its RESULTs, or needed none.
void Engine::step_done(Collective& c, const Step& step) {
  if (step.kind != Step::Kind::header) {
    SegmentState& s = c.segments[step.segment];
    ++s.steps_done;
    if (checked_ && ((step.kind == Step::Kind::stream && !s.stream->claims_hold()) ||
                   (step.kind == Step::Kind::rest && !s.stream->refinement().claims_hold())))
      return break_damaged(step.start);
    if (step.kind == Step::Kind::exponents) s.sequence->agree();
    if (s.steps_done == kinds_of_steps(c.call)) {
      s.stream->finish();
      probe_.sample_result(s.call, s.probed);
      s.stream.reset();
      s.marks.reset();
      s.sequence.reset();
      s.plan.reset();
    }
  }
  if (++c.done_steps < c.steps) return;
  if (sending_ < queue_.size() && queue_[sending_].get() == &c) on_all_sent(c);
  note_policy(c);
  complete(c, Status::done);
}

void Engine::note_policy(const Collective& c) {
  const int64_t now = clock_(), since = std::max(c.opened_at.load(), completed_at_);
  completed_at_ = now;
  if (!c.call.auto_zeros) return;
  ++stats_.policy_collectives;
  stats_.policy_elements += c.call.count;
  stats_.policy_ns += now - since + c.scanned_before;
  stats_.policy_lanes = c.call.auto_lanes;
}

// The number of packets that the sending collective has ready.
uint32_t Engine::sendable() const {
  if (sending_ >= queue_.size()) return 0;
  const Collective& c = *queue_[sending_];
  if (frozen_ && c.index >= limit_) return 0;
  if (c.active.empty() || next_packet_ >= c.active.back().end) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>(c.active.back().end - next_packet_, stripes_.size() * admission_.slots));
}

bool Engine::can_send() const {
  if (has_replays()) return std::ranges::any_of(stripes_, [](const Stripe& s) { return s.has_replays() && s.window.room() > 0; });
  return stripes_[turn_of(next_packet_)].window.room() > 0 && sendable() > 0;
}

// Builds the next packet of a stripe, and puts it with those that it will send.
void Engine::build(Collective& c, uint64_t packet_number, Deal::Place at) {
  const uint64_t number = at.number;
  Stripe& stripe = stripes_[at.stripe];
  uint8_t* const to = stripe.record(number, stride_);
  uint16_t& reader = stripe.readers[stripe.index(number)];
  const Step& step = c.active.back();
  const uint64_t packet = packet_number - step.start;
  bool filled = true, is_or = true;
  uint32_t used = admission_.words;
  std::optional<uint32_t> owner;
  Stream* stream = nullptr;
  reader = 0;
  if (step.kind == Step::Kind::stream) {
    stream = &*c.segments[step.segment].stream;
    reader = stream->reader(packet);
    is_or = stream->is_or(packet);
    owner = stream->owner(packet);
  } else if (step.kind == Step::Kind::rest) {
    is_or = false;
  }
  const bool sends = owner.value_or(admission_.rank) == admission_.rank;
  const bool adds = checked_ && !is_or && c.call.kind != Kind::no_op;
  const bool padded = c.call.sealed && !is_or && sends;
  // Not where RESULTs are checked: from a damaged one other words would be restored than were sent.
  const bool last = sends && !is_or && !checked_ && stripe.port->is_last(stripe.seq(number));
  // Without its pad a packet is in no memory that a switch may read.
  uint8_t* const payload = padded || last ? aside_.get() : to + wire::kHeaderBytes;
  WeighedPacket weighed{adds ? check_of(c).weights(0) : nullptr};
  const bool weighs = adds && !padded && stream && stream->weighs(packet);
  if (stream) {
    filled = sends && stream->encode(packet, payload, weighs ? &weighed : nullptr);
    used = stream->used(packet);
  } else if (step.kind == Step::Kind::exponents) {
    filled = c.segments[step.segment].sequence->encode(packet, payload);
  } else if (step.kind == Step::Kind::marks) {
    filled = c.segments[step.segment].marks->encode(packet, payload);
  } else if (step.kind == Step::Kind::ranges) {
    filled = c.segments[step.segment].stream->refinement().encode_ranges(packet, payload);
  } else if (step.kind == Step::Kind::rest) {
    filled = c.segments[step.segment].stream->refinement().encode_rest(packet, payload);
  } else if (step.kind == Step::Kind::plan || c.header_has_plan) {
    const Plan& plan = *c.segments[step.segment].plan;
    filled = plan.encode(packet, payload);
    used = plan.used(packet);
  } else {
    PlanHeader::encode(c.call, payload_words(), payload);
    used = kPlanHeaderWords;
  }
  if (padded && !std::exchange(filled, true)) std::fill_n(payload, 4 * size_t{payload_words()}, uint8_t{0});
  if (checked_) used = admission_.words;
  if (checked_ && filled) {
    std::fill(payload + 4 * size_t{payload_words()}, payload + stride_ - wire::kHeaderBytes, uint8_t{0});
    if (step.kind == Step::Kind::header) PlanHeader::protect(c.call, payload_words(), payload);
    if (padded) {
      const Digest& digest = c.segments[step.segment].digest;
      seal_->add_pad(packet_number, owner.has_value(), *sealed_check_, digest, payload, to + wire::kHeaderBytes);
    } else if (adds) {
      const PacketCheck::Sums sums = weighs ? PacketCheck::Sums{{weighed.sum}} : check_of(c).weighted(payload);
      check_of(c).write(packet_number, c.segments[step.segment].digest, sums, payload);
    }
  }
  wire::Header header;
  header.op = static_cast<uint8_t>(is_or ? wire::Op::OR : wire::Op::SUM);
  header.flags = filled ? wire::kFlagPayload : 0;
  stripe.address(header, number);
  stripe.direct(header, number);
  header.write(to);
  stripe.has_payload[stripe.index(number)] = filled;
  if (last && filled) stripe.port->complete(header.seq, payload, used);
  stripe.push(number, stride_, used);
}

// Sends what has been sent before to another switch; else new packets, in order, up to the first whose stripe has no room.
bool Engine::send_new(int64_t now) {
  if (rates_) rates_->end(now);
  const bool again = has_replays();
  const uint32_t ready = again ? 0 : sendable();
  if (!again && ready == 0) return false;
  const int64_t before = clock_();
  Collective* const c = again ? nullptr : queue_[sending_].get();
  const bool timed = c && c->active.back().sums();
  if (c) {
    rooms_.clear();
    for (const Stripe& each : stripes_) rooms_.push_back(each.room());
    for (const uint64_t end = next_packet_ + ready; next_packet_ < end; ++next_packet_) {
      const Deal::Place at = place_of(next_packet_);
      if (rooms_[at.stripe] == 0) break;
      --rooms_[at.stripe];
      build(*c, next_packet_, at);
    }
  }
  uint64_t count = 0;
  for (Stripe& s : stripes_) {
    if (s.has_replays()) {
      const uint64_t first = s.window.next(), last = first + std::min<uint64_t>(s.replay_end - first, s.room());
      for (uint64_t number = first; number < last; ++number) s.push(number, stride_, admission_.words);
    }
    const size_t each = s.data.size() + s.skips.size();
    count += each;
    stats_.data_packets += s.data.size();
    stats_.skip_packets += s.skips.size();
    // RESULTs of plans wait for other ranks, so their round trips do not measure the network.
    s.window.sent(static_cast<uint32_t>(each), now, timed);
  }
  stats_.quantize_ns += clock_() - before;
  if (count > 0) transmit();
  if (!again) note_waiting(now, count);
  return count > 0;
}

bool Engine::retransmit(int64_t now) {
  bool any = false;
  for (Stripe& each : stripes_) {
    lost_.clear();
    each.window.detect_lost(now, lost_);
    for (uint64_t number : lost_) push_again(packet_number_of(each, number), now);
    any |= !lost_.empty();
  }
  if (any) transmit();
  return any;
}

void Engine::push_again(uint64_t packet_number, int64_t now) {
  note_again(packet_number, now);
  const auto [turn, number] = place_of(packet_number);
  uint8_t* to = stripes_[turn].record(number, stride_);
  to[wire::kFlagsOffset] |= wire::kFlagRetransmission;
  // The answer has it too, if it is for this worker alone.
  wire::store16(to + wire::kReplyOffset, Window::stamp(now));
  stripes_[turn].push(number, stride_, admission_.words);
}

bool Engine::receive(int64_t now) {
  bool any = false;
  for (Stripe& each : stripes_) {
    any |= receive(each, now);
    if (broken_) return true;
  }
  return any;
}

bool Engine::receive(Stripe& stripe, int64_t now) {
  received_.clear();
  const int64_t before = stripes_.size() == 1 ? now : clock_();
  stripe.port->receive(received_);
  const int64_t got = clock_();
  stats_.receive_ns += got - before;
  if (received_.empty()) return false;
  const Admission& at = stripe.at;
  accepted_.clear();
  for (const Received& r : received_) {
    if (r.size != wire::kHeaderBytes && r.size != stride_) {
      ++stats_.ignored;
      continue;
    }
    const wire::Header h = wire::Header::parse(r.header);
    const bool filled = h.flags & wire::kFlagPayload;
    // The number with this sequence number that is nearest to the window's base.
    const int32_t ahead = static_cast<int32_t>(h.seq - stripe.seq(stripe.window.base()));
    if (h.version != wire::kVersion || h.op != static_cast<uint8_t>(wire::Op::RESULT) || h.job != at.job ||
        h.token != at.result_token || filled != (r.size == stride_) || h.slot != at.base + (h.seq & (at.slots - 1))) {
      ++stats_.ignored;
      continue;
    }
    const uint64_t number = stripe.window.base() + static_cast<uint64_t>(int64_t{ahead});
    const uint64_t packet_number = packet_number_of(stripe, number);
    const uint16_t reads = stripe.readers[stripe.index(number)];
    // A bare RESULT acknowledges what another rank reads, and nothing else.
    const bool bare = h.flags & wire::kFlagDirected && !filled;
    if (bare && (reads == 0 || reads == admission_.rank + 1)) {
      ++stats_.ignored;
      continue;
    }
    const uint8_t* words = filled ? r.words : nullptr;
    bool decoded = false;
    if (checked_ && ahead >= 0 && !is_right(packet_number, words, decoded)) {
      on_damaged(packet_number, now);
      if (broken_) return true;
      continue;
    }
    const bool is_new = ahead >= 0 && stripe.window.on_result(number);
    // The answer to a second copy of a directed contribution echoes whom it named.
    const bool echo = reads != 0 && !at.receivers.empty() && h.reply == at.receivers[reads - 1u];
    if (h.reply != 0 && !echo) stripe.window.answered(h.reply, is_new, now);
    if (!is_new) {
      ++stats_.ignored;
      continue;
    }
    accepted_.push_back(number);
    if (h.flags & wire::kFlagCe) on_ce(stripe, number, now);
    on_result(packet_number, words, decoded);
    if (broken_) return true;
  }
  if (!stripe.data.empty() || !stripe.skips.empty()) transmit();  // asks again for RESULTs that were damaged
  stats_.results += accepted_.size();
  stats_.decode_ns += clock_() - got;
  if (accepted_.empty()) return true;
  last_result_ = now;
  stripe.window.acknowledge(accepted_, now);
  return true;
}

// A RESULT that the window has not had before.
void Engine::on_result(uint64_t packet_number, const uint8_t* payload, bool decoded) {
  size_t index = 0;
  Collective* const found = find(packet_number, &index);
  if (!found) return;
  Collective& c = *found;
  Step& step = c.active[index];
  const uint64_t packet = packet_number - step.start;
  ++c.results;
  ++step.results;
  SegmentState* s = step.segment < c.segments.size() ? &c.segments[step.segment] : nullptr;
  if (step.kind == Step::Kind::stream) {
    if (!decoded) s->stream->decode(packet, payload);
  } else if (step.kind == Step::Kind::plan) {
    s->plan->decode(packet, payload);
  } else if (step.kind == Step::Kind::exponents) {
    s->sequence->decode(packet, payload);
  } else if (step.kind == Step::Kind::marks) {
    s->marks->decode(packet, payload);
  } else if (step.kind == Step::Kind::ranges) {
    s->stream->refinement().decode_ranges(packet, payload);
  } else if (step.kind == Step::Kind::rest) {
    s->stream->refinement().decode_rest(packet, payload);
  } else {
    // A RESULT without words is no header.
    const bool mismatch = !payload || PlanHeader::mismatch(payload, c.difference, &c.policy);
    if (payload && PlanHeader::pauses(payload) && !frozen_) {
      // All ranks read this before they send a packet of the next collective.
      frozen_ = pausing_ = true;
      limit_ = c.index + 1;
    }
    if (Policy::valid(c.policy)) policy_ = c.policy;
    // All ranks read this before they build another packet.
    if (payload && stripes_.size() > 1) deal_.change(c.start + 1, PlanHeader::weight(payload));
    // A withdrawn call is over at every rank: one that calls something else may be a step ahead, after the change.
    const bool withdrawn = payload && PlanHeader::withdrawn(payload);
    if (mismatch && !withdrawn) {
      // Every rank sees the mismatch, sends no more packets of this collective, and continues with the next one.
      ++sending_;
      return complete(c, Status::mismatch);
    }
    if (withdrawn) {
      ++sending_;
      return complete(c, Status::moved);
    }
    c.opened = true;
    c.opened_at = clock_();
    if (checked_) c.digest = check_of(c).extended({}, PlanHeader::words(payload));
    if (c.header_has_plan) s->plan->decode(0, payload);
  }
  if (step.results < step.end - step.start) return;
  const Step finished = step;
  c.active.erase(c.active.begin() + static_cast<std::ptrdiff_t>(index));
  step_done(c, finished);
}

void Engine::complete(Collective& c, Status status) {
  c.ended = status;
  if (c.exchange) {
    if (status == Status::done) {
      make_seal(c);
    } else {
      broken_ = true;  // some ranks seal, and others do not
      for (auto& each : queue_) std::copy_n(c.difference, 5, each->difference);
      return break_all(status);
    }
    if (broken_) return;
  }
  c.active.clear();
  c.segments.clear();
  publish();
}

void Engine::set_status(Collective& c, Status status) {
  if (status == Status::done && !c.exchange) {
    ++stats_.completed;
    stats_.elements += c.call.fingerprint_count;
    if (c.call.bits == kExact) stats_.exact_elements += c.call.fingerprint_count;
    if (c.call.bits == kBounded) stats_.bounded_elements += c.call.fingerprint_count;
    stats_.bytes_reduced += c.call.count * c.call.element_bytes();
  }
  c.ended_at = clock_();
  c.status = status;
}

// Sets the status of collectives that ended, in call order and up to the limit.
void Engine::publish() {
  while (!queue_.empty() && queue_.front()->ended != Status::pending && !halted()) {
    const auto first = std::move(queue_.front());  // the caller may hold the only other reference
    queue_.pop_front();
    if (sending_ > 0) --sending_;
    ++completed_;
    completed_end_ = first->end;
    set_status(*first, first->ended);
  }
  if (queue_.empty() && busy_since_ >= 0) {
    stats_.busy_ns += clock_() - busy_since_;
    busy_since_ = -1;
  }
  if (pausing_ && halted()) {
    pausing_ = false;
    if (pause_eventfd_ >= 0) signal_wake_up(pause_eventfd_);
  }
  changed_.notify_all();
}

void Engine::set_pause_eventfd(int descriptor) {
  auto lock = contend();
  pause_eventfd_ = descriptor;
}

void Engine::fail_from(uint64_t begun) {
  auto lock = contend();
  failed_from_ = std::min(failed_from_, begun);
  while (!queue_.empty() && queue_.back()->index >= failed_from_) {
    const auto last = std::move(queue_.back());
    queue_.pop_back();
    forget_sums(*last);
    last->active.clear();
    last->segments.clear();
    set_status(*last, Status::lost);
  }
  sending_ = std::min(sending_, queue_.size());
  wake();
  publish();
}

uint64_t Engine::begun() {
  auto lock = contend();
  return count_begun();
}

uint64_t Engine::count_begun() const {
  uint64_t count = completed_;
  for (const auto& c : queue_) count += c->begun;
  return std::max(count, begun_before_break_);
}

}  // namespace switchagg
