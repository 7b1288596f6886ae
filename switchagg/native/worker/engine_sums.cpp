// The engine's sums in memory that the workers of its job share, without slots (shared_sums.h). A unit is of the stream's packets, or
// of dense floats in 32-bit lanes, which are put as they are: whoever adds makes their lanes.
#include <algorithm>
#include <array>

#include "switchagg/native/shared/slot_kernels.h"
#include "switchagg/native/worker/engine.h"

namespace switchagg {
namespace {

constexpr uint64_t kLeastSummed = 1 << 14;  // words of a segment's stream; fewer are summed in slots
constexpr size_t kNear = 1 << 22;           // bytes to what is prefetched for a scan
constexpr uint64_t kLine = 16;              // floats; shares are of whole lines of cache

uint64_t units(uint64_t parts, uint64_t each) { return (parts + each - 1) / each; }
bool has_floats(const Call& call) { return call.dtype == DType::f32 && call.bits == 32; }
float* floats(uint32_t* words) { return reinterpret_cast<float*>(words); }

}  // namespace

// The same at all ranks: by what they call, and, once the header has its RESULT, by whether all have the memory.
bool Engine::may_sum(const Call& call) const {
  return sums_ && !checked_ && call.kind == Kind::allreduce && call.adds() && sums_->all_here();
}

bool Engine::sums_without_slots(const SegmentState& s) const {
  return may_sum(s.call) && (s.stream->packets() * payload_words() >= kLeastSummed || (sums_->is_whole(s.call.count) && sums_floats(s)));
}

// Of these: dense floats.
bool Engine::sums_floats(const SegmentState& s) const {
  return has_floats(s.call) && s.sequence->whole() &&
         std::ranges::none_of(s.sequence->ranges(), [](const ChunkRange& each) { return each.special; });
}

// Before anything is agreed on, of a segment that this worker puts as it is.
bool Engine::expects_floats(const Call& call) const {
  return may_sum(call) && has_floats(call) && !call.mask && !call.memory && (call.count >= kLeastSummed || sums_->is_whole(call.count)) &&
         !stripes_[0].port->fenced();
}

// Scans a segment, or its first units, and puts its floats meanwhile. False: nothing was scanned.
bool Engine::scan_and_put(Collective& c, uint32_t segment) {
  SegmentState& s = c.segments[segment];
  if (s.early > 0 || !expects_floats(s.call) || !unions_.whole(c.call)) return false;
  // The units of all segments are started but for the last one's, or, at a call's start, of all calls before.
  const bool alone = c.segments.size() == 1 && s.call.count <= SharedSums::kUnit;
  s.early_unit = segment <= 1 ? sums_->first_of_call(alone) : sums_->started();
  if (segment > 0) s.early_unit += units(c.segments[segment - 1].call.count, SharedSums::kUnit);
  const uint32_t own = sums_->worker();
  const bool whole = sums_->is_whole(s.call.count);
  if (whole && !sums_->all_is_put()) return false;
  uint64_t done = 0;  // units
  for (; s.early < s.call.count && sums_->is_free(s.early_unit + done); ++done) {
    const uint64_t from = s.early, count = std::min(SharedSums::kUnit, s.call.count - from);
    const float* const in = reinterpret_cast<const float*>(s.call.in) + from;
    float* const record = floats(sums_->record(s.early_unit + done, own));
    if (whole) {
      s.plan->scan(count);
      copy_words(record, in, count);
    }
    for (uint32_t worker = 0; worker < sums_->workers() && !whole; ++worker) {
      const SharedSums::Share share = sums_->share(count, worker, kLine);
      if (worker != own) copies_.begin(worker);
      for (uint64_t at = share.from, end = at + share.count, n; at < end; at += n) {
        n = std::min(SharedCopies::kPiece, end - at);
        s.plan->scan(n);
        if (worker != own) copies_.copy(worker, in + at, n, record + at);
      }
    }
    s.early += count;
  }
  copies_.flush();
  if (segment == 0) sums_->note_early(c.index, done);
  return done > 0;
}

void Engine::start_sum(Collective& c, const Step& step) {
  SegmentState& s = c.segments[step.segment];
  const bool floats = sums_floats(s);
  const uint64_t parts = floats ? s.call.count : s.stream->packets(), each = floats ? SharedSums::kUnit : SharedSums::kUnit / payload_words();
  const uint64_t count = units(parts, each);
  const auto early = floats ? std::optional(c.index) : std::nullopt;
  const bool alone = c.segments.size() == 1 && count == 1, whole = floats && sums_->is_whole(s.call.count);
  if (!whole) sums_->use_huge_pages();
  const uint64_t unit = step.segment == 0 ? sums_->start_first(count, alone, early, whole) : sums_->start(count, whole);
  if (!floats || unit != s.early_unit) s.early = 0;
  summed_.push_back({&c, step, floats, whole, unit, sums_->started(), parts, each});
}

// Does the next thing that there is to do. False: there is none.
bool Engine::sum(int64_t now) {
  if (summed_.empty() || stripes_[0].port->fenced()) return false;
  const std::optional<SharedSums::Action> next = sums_->next();
  if (!next) return false;
  const Summed& of = *std::ranges::find_if(summed_, [&](const Summed& each) { return next->unit < each.end; });
  SegmentState& s = of.collective->segments[of.step.segment];
  Stream& stream = *s.stream;
  const uint32_t own = sums_->worker();
  const uint64_t from = (next->unit - of.unit) * of.each, count = std::min(of.each, of.parts - from);
  // Calls f(element or packet, how many, where they are in a record) for those of a worker's share.
  const auto each_of = [&](uint32_t worker, auto&& f) {
    if (of.whole) return f(from, count, uint64_t{0});
    const SharedSums::Share share = sums_->share(count, worker, of.floats ? kLine : 1);
    if (of.floats) {
      if (share.count > 0) f(from + share.from, share.count, share.from);
      return;
    }
    for (uint64_t i = share.from; i < share.from + share.count; ++i) f(from + i, 1, i * payload_words());
  };
  uint32_t* const result = sums_->result(next->unit);
  uint32_t* const aside = reinterpret_cast<uint32_t*>(aside_.get());
  const int64_t before = clock_();
  if (!of.floats) stream.fetch(bytes_to_scan(*of.collective, s.call));
  if (next->kind == SharedSums::Action::Kind::put) {
    uint32_t* const record = sums_->record(next->unit, own);
    if (of.whole && from >= s.early) stream.put(from, count, floats(record));
    for (uint32_t worker = 0; worker < sums_->workers() && from >= s.early && !of.whole; ++worker) {
      if (worker == own && (!of.floats || stream.is_plain())) continue;  // added up from the input
      const bool copied = of.floats ? stream.is_plain() : packets_are_copied();
      if (copied) copies_.begin(worker);
      each_of(worker, [&](uint64_t at, uint64_t n, uint64_t place) {
        if (of.floats) return copied ? copies_.copy(worker, stream.input(at), n, floats(record + place)) : stream.put(at, n, floats(record + place));
        if (!copied || copies_.is_plain(worker)) return encode(stream, at, record + place);
        encode(stream, at, aside);
        copies_.copy(worker, floats(aside), payload_words(), floats(record + place));
      });
    }
    stats_.quantize_ns += clock_() - before;
  } else if (next->kind == SharedSums::Action::Kind::add) {
    const bool past = !of.whole && copies_.past() && (of.floats || packets_are_copied());
    each_of(own, [&](uint64_t at, uint64_t n, uint64_t place) {
      if (!of.floats) return add(stream, at, next->unit, place, past);
      std::array<const float*, wire::kMaxWorkers> ranks;
      for (uint32_t worker = 0; worker < sums_->workers(); ++worker) ranks[worker] = floats(sums_->record(next->unit, worker) + place);
      if (stream.is_plain()) ranks[own] = stream.input(at);
      float* const to = of.whole ? reinterpret_cast<float*>(s.call.out) + at : floats(result + place);
      stream.add(at, n, {ranks.data(), sums_->workers()}, to, past);
    });
    stats_.quantize_ns += clock_() - before;
  } else {
    each_of(next->worker, [&](uint64_t at, uint64_t n, uint64_t place) {
      of.floats ? stream.take(at, n, floats(result + place)) : stream.decode(at, reinterpret_cast<uint8_t*>(result + place));
    });
    stats_.decode_ns += clock_() - before;
  }
  copies_.flush();
  if (sums_->did(*next)) stripes_[0].port->wake_others();
  last_result_ = now;
  while (!summed_.empty() && sums_->taken() >= summed_.front().end) {
    const Summed done = summed_.front();
    summed_.pop_front();
    const uint64_t packets = done.collective->segments[done.step.segment].stream->packets();
    count_as_packets(done.floats ? packets : 0, 0, packets);
    step_done(*done.collective, done.step);
  }
  return true;
}

// The next segment to be scanned: so many bytes behind the input of this one; 0: too many to stay in the caches, or all is scanned.
size_t Engine::bytes_to_scan(const Collective& c, const Call& segment) {
  const uint32_t next = c.turn + (c.lag > 0);
  if (next >= c.segments.size()) return 0;
  const size_t bytes = static_cast<size_t>(c.segments[next].call.in - segment.in);
  return bytes <= kNear ? bytes : 0;
}

// Writes this worker's words of a packet, zeros where it would send a SKIP.
void Engine::encode(Stream& stream, uint64_t packet, uint32_t* to) {
  const bool filled = stream.encode(packet, reinterpret_cast<uint8_t*>(to));
  if (!filled) std::fill_n(to, payload_words(), 0);
  count_as_packets(filled, !filled, 0);
}

// Adds up all ranks' words of a packet, which are at `place` of a unit. Writes the result, here and for the others, that past the cache
// if `past`.
void Engine::add(Stream& stream, uint64_t packet, uint64_t unit, uint64_t place, bool past) {
  uint8_t* const aside = aside_.get();
  std::array<const uint8_t*, wire::kMaxWorkers> ranks;
  for (uint32_t worker = 0; worker < sums_->workers(); ++worker)
    ranks[worker] = reinterpret_cast<const uint8_t*>(sums_->record(unit, worker) + place);
  ranks[sums_->worker()] = aside;
  encode(stream, packet, reinterpret_cast<uint32_t*>(aside));
  uint8_t* const result = reinterpret_cast<uint8_t*>(sums_->result(unit) + place);
  uint8_t* const sum = past ? aside : result;
  const WordsKernel combine = stream.is_or(packet) ? slot_kernels().or_all : slot_kernels().add_all;
  combine(sum, ranks.data(), sums_->workers(), stream.used(packet));
  stream.decode(packet, sum);
  if (past) copies_.write(reinterpret_cast<float*>(sum), stream.used(packet), reinterpret_cast<float*>(result), true);
}

// Counted as the packets that it would have been, whose records would be in the same memory: what is reckoned from them, such as the time
// on a network, knows no other way.
void Engine::count_as_packets(uint64_t data, uint64_t skips, uint64_t results) {
  stats_.data_packets += data;
  stats_.skip_packets += skips;
  stats_.results += results;
  PortCounters counts;
  counts.packets_out = data + skips;
  counts.bytes_out = data * stride_ + skips * wire::kHeaderBytes;
  counts.packets_in = results;
  counts.bytes_in = results * stride_;
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
