// The engine in a change of membership, and from one switch to another (docs/protocol.md, sections 12 and 13).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/worker/engine.h"

namespace switchagg {
namespace {

constexpr uint32_t kAsked = 2;  // damaged RESULTs of a packet number after which the ranks send it again
constexpr size_t kMostAgain = 64;  // times of retransmissions that a collective keeps

// True if a call means the same under both memberships.
bool means_the_same(const Call& call, const Admission& before, const Admission& after) {
  if (before.rank == after.rank && before.workers == after.workers) return true;
  if (call.bits == 8 && !call.auto_lanes && after.workers > 127) return false;  // too many workers for 8-bit lanes
  return call.kind == Kind::allreduce || call.kind == Kind::barrier || call.kind == Kind::no_op;
}

}  // namespace

uint64_t Engine::freeze() {
  auto lock = contend();
  frozen_ = true;
  pausing_ = false;
  limit_ = completed_;
  wake();
  changed_.notify_all();
  return completed_;
}

bool Engine::finish(uint64_t complete_to, int64_t slice_ns) {
  auto lock = contend();
  if (broken_ || !frozen_) return false;
  limit_ = std::max(limit_, complete_to);
  suspended_ = false;  // for a way to another switch that a loss has ended: the old one still has the RESULTs
  publish();  // collectives that ended before the limit rose
  const int64_t until = clock_() + slice_ns;
  while (!broken_ && !halted()) {
    const int64_t now = clock_();
    if (now >= until) break;
    if (driving_ || !has_work()) {
      changed_.wait_for(lock, std::chrono::nanoseconds(until - now));
    } else {
      drive(lock, nullptr, until);
    }
  }
  return !broken_ && halted();
}

bool Engine::resume(std::unique_ptr<Port> port, const Admission& admission, bool lost, std::vector<Attachment> more) {
  auto lock = contend();
  suspended_ = true;  // a replay that a lost rank cannot end
  wake();
  changed_.wait(lock, [this] { return !driving_; });
  if (broken_) return false;
  past_packets_ += next_packet_;
  for (const Stripe& each : stripes_) forget(each);
  const Admission before = admission_;
  adopt(std::move(port), admission, std::move(more));

  std::deque<std::shared_ptr<Collective>> queue;
  queue.swap(queue_);
  exchange_nonces();
  for (auto& work : queue) {
    Collective& c = *work;
    if (lost || c.begun || c.exchange) {
      c.active.clear();
      c.segments.clear();
      set_status(c, Status::lost);
    } else {
      // Its header tells all ranks, because some may call it only now.
      if (!means_the_same(c.call, before, admission)) c.call.withdrawn = true;
      c.index = calls_++;
      c.call.call_number = call_number(c.index);
      c.call.rank = admission.rank;
      c.call.workers = admission.workers;
      c.generation = generation_.load();
      queue_.push_back(std::move(work));
    }
  }
  publish();
  return true;
}

// Initializes the state of a new generation.
void Engine::adopt(std::unique_ptr<Port> port, const Admission& admission, std::vector<Attachment> more) {
  admission_ = admission;
  make_check();
  stride_ = wire::kHeaderBytes + 4 * admission.words;
  next_packet_ = 0;
  attach(std::move(port), admission, std::move(more));
  ++generation_;
  calls_ = 0;
  completed_ = completed_end_ = limit_ = begun_before_break_ = 0;
  failed_from_ = UINT64_MAX;
  frozen_ = pausing_ = pause_requested_ = false;
  unions_.clear();
  if (Policy::valid(admission.policy)) policy_ = policy_sent_ = admission.policy;
  last_result_ = 0;
  sending_ = 0;
  suspended_ = false;
}

// ------------------------------------------------------------------------------------------------ another switch

std::vector<uint64_t> Engine::suspend() {
  auto lock = contend();
  if (!suspended_) {
    suspended_ = true;
    wake();
    changed_.notify_all();
    changed_.wait(lock, [this] { return !driving_; });
    if (rates_) rates_->stop();
    for (Stripe& s : stripes_) {
      const uint64_t end = s.end();
      for (uint64_t q = end - std::min<uint64_t>(end, s.at.slots); q < end; ++q)
        s.held[s.index(q)] = s.window.holds(q) || (q < s.replay_end && s.held[s.index(q)]);
    }
  }
  std::vector<uint64_t> lowest;
  for (const Stripe& s : stripes_) {
    uint64_t q = s.window.base();
    while (q < s.end() && s.held[s.index(q)]) ++q;
    lowest.push_back(q);
  }
  return lowest;
}

bool Engine::move(std::unique_ptr<Port> port, const Admission& admission, uint64_t first, uint32_t stripe, bool more) {
  auto lock = contend();
  if (broken_ || !suspended_) return false;
  if (stripe >= stripes_.size())
    throw std::invalid_argument("stripe " + std::to_string(stripe) + "; accepted: under " + std::to_string(stripes_.size()));
  Stripe& s = stripes_[stripe];
  const uint64_t end = s.end();
  if (admission.slots != s.at.slots || admission.words != s.at.words || first > end || end - first > s.at.slots)
    throw std::invalid_argument("P = " + std::to_string(admission.slots) + ", K = " + std::to_string(admission.words) +
                                ", first packet " + std::to_string(first) + "; accepted: " +
                                std::to_string(s.at.slots) + ", " + std::to_string(s.at.words) + ", " +
                                std::to_string(end) + " or at most P before");
  Stripe moved({std::move(port), admission}, batch(), stride_, shared_links_, first);
  moved.has_payload = s.has_payload;
  moved.readers = s.readers;
  moved.held = s.held;
  moved.replay_end = end;
  for (uint64_t q = first; q < end; ++q) {
    // All ranks have stopped, and one lacks the RESULT of `first`, so none has sent packet q + P.
    s.port->restore(s.seq(q));
    std::copy_n(s.record(q, stride_), stride_, moved.record(q, stride_));
    moved.readdress(q, stride_);
  }
  forget(s);
  s = std::move(moved);
  moved_ = true;
  wait_for_all();
  last_result_ = 0;
  if (damage_ && turn_of(*damage_) == stripe) damage_.reset();
  for (auto& [packet_number, times] : damaged_) {
    if (turn_of(packet_number) != stripe) continue;
    replayed_.insert(packet_number);
    times = 0;
  }
  suspended_ = more;
  if (!suspended_ && replaying()) {  // other ranks may need what this one needs no more
    begin_background();
  }
  changed_.notify_all();
  return true;
}

// ------------------------------------------------------------------------------------------------ damaged RESULTs

// The check words of a generation are the same at any switch.
void Engine::make_check() {
  check_.reset();
  damaged_.clear();
  replayed_.clear();
  damage_.reset();
  sealed_check_.reset();
  seal_.reset();
  if (checked_)
    check_.emplace(payload_words(), admission_.workers, uint64_t{admission_.job} << 32 | admission_.first_seq);
}

int64_t Engine::deadline() const {
  for (const auto& c : queue_)
    if (!c->exchange) return c->deadline;
  return INT64_MAX;
}

// ------------------------------------------------------------------------------------------------ sealed sums

// Puts the exchange of nonces before all other collectives of the generation.
void Engine::exchange_nonces() {
  if (secret_.empty()) return;
  constexpr uint32_t each = sizeof(Nonce) / 4;
  nonce_ = fresh_nonce();
  nonces_.assign(admission_.workers, {});
  auto work = std::make_shared<Collective>();
  work->exchange = true;
  work->deadline = INT64_MAX;
  work->index = calls_++;
  work->generation = generation_.load();
  Call& call = work->call;
  call.kind = Kind::allgather;
  call.op = ReduceOp::bit_or;
  call.call_number = call_number(work->index);
  call.workers = admission_.workers;
  call.rank = admission_.rank;
  call.count = uint64_t{each} * admission_.workers;
  call.fingerprint_count = each;
  call.in = nonce_.data();
  call.in_begin = uint64_t{each} * admission_.rank;
  call.in_end = call.in_begin + each;
  call.out = nonces_[0].data();
  call.out_end = call.count;
  call.zero_fill = true;
  queue_.push_front(std::move(work));
}

// A nonce of another session in the place of this rank's own would make a key that has been used.
void Engine::make_seal(const Collective& exchange) {
  if (nonces_[admission_.rank] != nonce_) return break_damaged(exchange.start);
  seal_.emplace(secret_, nonces_, admission_.rank, admission_.words);
  std::vector<uint32_t> weights = seal_->secret_words(PacketCheck::secret_words(payload_words()));
  sealed_check_.emplace(payload_words(), admission_.workers, weights);
  explicit_bzero(weights.data(), 4 * weights.size());
}

// No thread drives any more.
void Engine::wipe_keys() {
  if (!secret_.empty()) explicit_bzero(secret_.data(), secret_.size());
  sealed_check_.reset();
  seal_.reset();
}

// The collective that a packet is of, and the index of its step among the active ones. Null: it is of none any more, or its RESULT
// was held before a move to another switch.
Collective* Engine::find(uint64_t packet_number, size_t* index) {
  if (moved_) {
    const auto [turn, number] = place_of(packet_number);
    const Stripe& s = stripes_[turn];
    if (number < s.replay_end && s.held[s.index(number)]) return nullptr;
  }
  for (auto& candidate : queue_) {
    Collective& c = *candidate;
    if (!c.begun || packet_number < c.start || packet_number >= c.end) continue;
    *index = 0;
    while (*index < c.active.size() && packet_number >= c.active[*index].end) ++*index;
    return *index == c.active.size() || packet_number < c.active[*index].start ? nullptr : &c;
  }
  return nullptr;
}

// Counts a retransmission in its collective; the last entry has all that there is no more room for.
void Engine::note_again(uint64_t packet_number, int64_t now) {
  size_t index = 0;
  Collective* const c = find(packet_number, &index);
  if (!c) return;
  if (c->again.empty() || (c->again.size() < kMostAgain && c->again.back().at != now)) c->again.push_back({now, 0});
  ++c->again.back().packets;
}

// True unless this cannot be the RESULT of what ranks have sent. Null: it has no words. Of a sealed sum `payload` loses its pad. Where the
// stream weighs what it decodes, it is `decoded`, right or wrong: the right RESULT writes the same elements.
bool Engine::is_right(uint64_t packet_number, const uint8_t*& payload, bool& decoded) {
  const auto [turn, number] = place_of(packet_number);
  if (packet_number >= next_packet_ || stripes_[turn].window.holds(number)) return true;  // not taken anyway
  size_t index = 0;
  const Collective* const c = find(packet_number, &index);
  if (!c || c->call.kind == Kind::no_op) return true;
  const Step& step = c->active[index];
  const uint64_t packet = packet_number - step.start;
  const SegmentState* const s = step.segment < c->segments.size() ? &c->segments[step.segment] : nullptr;
  const bool stream = step.kind == Step::Kind::stream;
  bool right;
  if (!step.sums() || (stream && s->stream->is_or(packet))) {
    right = is_right_or(step, packet_number, payload);
  } else {
    const std::optional<uint32_t> owner = stream ? s->stream->owner(packet) : std::nullopt;
    const bool all = c->call.sealed || (stream ? s->stream->has_all(packet) : s->stream->refinement().has_all(packet));
    const std::optional<uint32_t> from = owner ? 1 : all ? std::optional(admission_.workers) : std::nullopt;
    const PacketCheck& check = check_of(*c);
    PacketCheck::Sums sums;
    if (payload && c->call.sealed) {  // a copy, which nobody else can change
      sums = seal_->take_pad(packet_number, owner.value_or(0), check, payload, aside_.get());
      payload = aside_.get();
    } else if (payload && stream && s->stream->weighs(packet)) {
      WeighedPacket weighed{check.weights(0)};
      s->stream->decode(packet, payload, &weighed);
      sums.of[0] = weighed.sum;
      decoded = true;
    } else if (payload) {
      sums = check.weighted(payload);
    }
    right = payload && check.holds(packet_number, s->digest, sums, payload, from, stream && s->stream->wraps(packet));
  }
  if (right) damaged_.erase(packet_number);
  return right;
}

// All bits that this rank has sent are in an OR. A header is the same at all ranks: where it is not, either they differ, which a
// second RESULT will say too, or the first was damaged. So is one that withdraws the call, which any rank may.
bool Engine::is_right_or(const Step& step, uint64_t packet_number, const uint8_t* payload) {
  const auto [turn, number] = place_of(packet_number);
  const Stripe& s = stripes_[turn];
  const bool filled = s.has_payload[s.index(number)];
  if (!payload) return !filled;
  if (filled) {
    const uint8_t* const own = s.record(number, stride_) + wire::kHeaderBytes;
    uint32_t missing = 0;
    for (size_t i = 0; i < 4 * size_t{admission_.words}; i += 4) missing |= wire::load32(own + i) & ~wire::load32(payload + i);
    if (missing) return false;
  }
  if (step.kind != Step::Kind::header) return true;
  uint32_t difference[5], policy;
  if (PlanHeader::mismatch(payload, difference, &policy) != 0 || PlanHeader::withdrawn(payload)) {
    const auto before = damaged_.find(packet_number);
    return before != damaged_.end() && before->second > 0;
  }
  return PlanHeader::is_protected(payload_words(), payload);
}

void Engine::on_damaged(uint64_t packet_number, int64_t now) {
  ++stats_.damaged;
  const uint32_t times = ++damaged_[packet_number];
  if (times < kAsked) {
    push_again(packet_number, now);
  } else if (replayed_.contains(packet_number)) {
    break_damaged(packet_number);
  } else if (!damage_) {
    damage_ = packet_number;
    if (pause_eventfd_ >= 0) signal_wake_up(pause_eventfd_);
  }
}

std::optional<uint64_t> Engine::unhealed() {
  auto lock = contend();
  if (damage_) return damage_;
  for (const auto& [packet_number, times] : damaged_) {
    size_t index = 0;
    const Collective* const c = find(packet_number, &index);
    if (c && c->active[index].kind != Step::Kind::header) return packet_number;
  }
  return std::nullopt;
}

void Engine::break_damaged(uint64_t packet_number) {
  damage_ = packet_number;
  broken_ = true;
  break_all(Status::damaged);
}

}  // namespace switchagg
