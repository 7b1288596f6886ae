// The engine's sums in memory that the workers of its job share, without packets (shared_sums.h).
#include <algorithm>
#include <array>

#include "switchagg/native/worker/engine.h"

namespace switchagg {
namespace {

constexpr uint64_t kLeastSummed = 1 << 14;  // elements of a segment; fewer are summed in packets

}  // namespace

// The same at all ranks: by what they have agreed on, and whether all have the memory, which is settled before the header's RESULT.
bool Engine::sums_without_packets(const SegmentState& s) const {
  const Call& call = s.call;
  return sums_ && !checked_ && call.kind == Kind::allreduce && call.dtype == DType::f32 && call.bits == 32 && call.adds() &&
         call.count >= kLeastSummed && s.sequence->whole() &&
         std::ranges::none_of(s.sequence->ranges(), [](const ChunkRange& each) { return each.special; }) && sums_->all_here();
}

// Does the next thing that there is to do. False: there is none.
bool Engine::sum(int64_t now) {
  if (summed_.empty() || stripes_[0].port->fenced()) return false;
  const std::optional<SharedSums::Action> next = sums_->next();
  if (!next) return false;
  const auto found = std::ranges::find_if(summed_, [&](const Summed& each) { return next->unit < each.end; });
  Collective& c = *found->collective;
  SegmentState& s = c.segments[found->step.segment];
  const uint64_t from = (next->unit - found->unit) * SharedSums::kUnit, count = std::min(SharedSums::kUnit, s.call.count - from);
  const auto share = [&](uint32_t worker, auto&& f) {
    const SharedSums::Share part = sums_->share(count, worker);
    if (part.count > 0) f(from + part.from, part.count, part.from);
  };
  const uint32_t own = sums_->worker();
  const int64_t before = clock_();
  if (next->kind == SharedSums::Action::Kind::put) {
    float* const record = sums_->record(next->unit, own);
    for (uint32_t worker = 0; worker < sums_->workers(); ++worker)
      if (worker != own || !s.stream->is_plain())
        share(worker, [&](uint64_t at, uint64_t n, uint64_t place) { s.stream->put(at, n, record + place); });
    stats_.quantize_ns += clock_() - before;
  } else if (next->kind == SharedSums::Action::Kind::add) {
    share(own, [&](uint64_t at, uint64_t n, uint64_t place) {
      std::array<const float*, wire::kMaxWorkers> ranks;
      for (uint32_t worker = 0; worker < sums_->workers(); ++worker) ranks[worker] = sums_->record(next->unit, worker) + place;
      if (s.stream->is_plain()) ranks[own] = s.stream->input(at);
      s.stream->add(at, n, {ranks.data(), sums_->workers()}, sums_->result(next->unit) + place);
    });
    stats_.quantize_ns += clock_() - before;
  } else {
    share(next->worker, [&](uint64_t at, uint64_t n, uint64_t place) { s.stream->take(at, n, sums_->result(next->unit) + place); });
    stats_.decode_ns += clock_() - before;
  }
  if (sums_->did(*next)) stripes_[0].port->wake_others();
  last_result_ = now;
  while (!summed_.empty() && sums_->taken() >= summed_.front().end) {
    const Summed done = summed_.front();
    summed_.pop_front();
    count_as_packets(done.collective->segments[done.step.segment].stream->packets());
    step_done(*done.collective, done.step);
  }
  return true;
}

// Counted as the packets that it would have been, whose records would be in the same memory: what is reckoned from them, such as the time
// on a network, knows no other way.
void Engine::count_as_packets(uint64_t packets) {
  stats_.data_packets += packets;
  stats_.results += packets;
  PortCounters counts;
  counts.packets_out = counts.packets_in = packets;
  counts.bytes_out = counts.bytes_in = packets * stride_;
  past_port_ += counts;
}

// A collective that is not done.
void Engine::forget_sums(const Collective& c) {
  const auto first = std::ranges::find(summed_, &c, &Summed::collective);
  if (first == summed_.end()) return;
  sums_->stop(first->unit);
  summed_.erase(first, summed_.end());
}

}  // namespace switchagg
