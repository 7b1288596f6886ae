// A change of membership: the part of the engine that stops, finishes what is complete, and goes on in a new generation.
#include <algorithm>
#include <chrono>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/worker/engine.h"

namespace switchagg {
namespace {

// Whether a call that was made under one membership means the same under the other.
bool means_the_same(const Call& call, const Membership& before, const Membership& after) {
  if (before.rank == after.rank && before.workers == after.workers) return true;
  if (call.bits == 8 && !call.auto_lanes && after.workers > 127) return false;  // too many to share them
  return call.kind == Kind::allreduce || call.kind == Kind::barrier || call.kind == Kind::floor;
}

}  // namespace

uint64_t Engine::freeze() {
  auto lock = contend();
  frozen_ = true;
  pausing_ = false;
  limit_ = completed_;
  port_->wake();
  changed_.notify_all();
  return completed_;
}

bool Engine::finish(uint64_t complete_to, int64_t slice_ns) {
  auto lock = contend();
  if (broken_ || !frozen_) return false;
  limit_ = std::max(limit_, complete_to);
  publish();  // what had ended and was not told
  const int64_t until = now_ns() + slice_ns;
  while (!broken_ && !halted()) {
    const int64_t now = now_ns();
    if (now >= until) break;
    if (driving_ || queue_.empty()) {
      changed_.wait_for(lock, std::chrono::nanoseconds(until - now));
    } else {
      drive(lock, nullptr, until);
    }
  }
  return !broken_ && halted();
}

bool Engine::resume(std::unique_ptr<Port> port, const Membership& membership, bool lost) {
  auto lock = contend();
  port_->wake();
  changed_.wait(lock, [this] { return !driving_; });
  if (broken_) return false;
  past_retransmissions_ += window_.retransmissions();
  past_positions_ += window_.next();
  past_port_ += port_->counters();
  port_ = std::move(port);
  const Membership before = membership_;
  adopt(membership);

  std::deque<std::shared_ptr<Collective>> queue;
  queue.swap(queue_);
  for (auto& work : queue) {
    Collective& c = *work;
    if (lost || c.begun) {
      c.active.clear();
      c.segments.clear();
      tell(c, Status::lost);
    } else {
      // All ranks must hear of it: some may call it only now.
      if (!means_the_same(c.call, before, membership)) c.call.withdrawn = true;
      c.index = calls_++;
      c.call.call_number = static_cast<uint32_t>(c.index);
      c.call.rank = membership.rank;
      c.call.workers = membership.workers;
      c.generation = generation_.load();
      queue_.push_back(std::move(work));
    }
  }
  publish();
  return true;
}

// The state of a generation that begins.
void Engine::adopt(const Membership& membership) {
  membership_ = membership;
  stride_ = wire::kHeaderBytes + 4 * membership.words;
  const uint32_t batch = static_cast<uint32_t>(std::max<size_t>(1, std::min(kMaxSegments, kMaxBatchBytes / stride_)));
  window_ = Window(membership.slots, batch, membership.window_limit);
  ring_ = port_->packet_memory(static_cast<size_t>(membership.slots) * stride_);
  has_payload_.assign(membership.slots, 0);
  ++generation_;
  calls_ = 0;
  completed_ = limit_ = 0;
  failed_from_ = UINT64_MAX;
  frozen_ = pausing_ = pause_requested_ = false;
  sparse_ = false;
  if (Policy::valid(membership.policy)) policy_ = policy_sent_ = membership.policy;
  heard_ = 0;
  sending_ = 0;
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
    last->active.clear();
    last->segments.clear();
    tell(*last, Status::lost);
  }
  sending_ = std::min(sending_, queue_.size());
  port_->wake();
  publish();
}

uint64_t Engine::begun() {
  auto lock = contend();
  uint64_t count = completed_;
  for (const auto& c : queue_) count += c->begun;
  return count;
}

}  // namespace switchagg
