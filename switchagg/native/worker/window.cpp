#include "switchagg/native/worker/window.h"

#include <algorithm>
#include <utility>

namespace switchagg {
namespace {
constexpr int64_t kRtoFloor = 500000, kRtoCeiling = 50000000, kRtoInitial = 10000000;
constexpr int64_t kRoundTrips = 8;  // of the least, as a timeout
constexpr uint32_t kEpochFlights = 64;
constexpr uint32_t kWholeBatches = 3, kMostUnanswered = kWholeBatches + 31;
constexpr uint32_t kLeastReordering = 16, kMostReordering = 64;
constexpr uint32_t kInitialShared = 10, kLeastShared = 2, kLeastReorderingShared = 3;

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
}  // namespace

Window::Window(uint32_t slots, uint32_t batch, uint32_t limit, uint64_t first, bool shared, uint32_t threads, uint32_t first_seq)
    : span_(slots / 2),
      limit_(std::max(1u, std::min(limit, slots / 2))),
      batch_(std::max(1u, std::min(batch, limit_))),
      reordering_threshold_(std::max(1u, std::min(std::clamp(2 * batch, kLeastReordering, kMostReordering), span_ / 4))),
      first_seq_(first_seq),
      shared_(shared),
      cwnd_(shared ? std::min(kInitialShared, limit_) : limit_),
      least_cwnd_(shared ? std::min(kLeastShared, limit_) : batch_),
      fast_below_(limit_),
      base_(first),
      next_(first),
      high_(first),
      highs_(std::clamp(threads, 1u, std::max(1u, slots / wire::kBlockSlots)), first),  // no more have slots of this job
      rto_(kRtoInitial),
      flight_end_(first),
      entries_(span_),
      held_from_(span_ + 1) {}

uint32_t Window::room() const {
  const uint32_t in_span = span_ - static_cast<uint32_t>(next_ - base_);
  const uint32_t in_flight = outstanding();
  return std::min(in_span, cwnd_ > in_flight ? cwnd_ - in_flight : 0);
}

void Window::sent(uint32_t count, int64_t now, bool timed) {
  const int64_t deadline = now + timeout();
  for (uint32_t i = 0; i < count; ++i, ++next_) at(next_) = {now, deadline, next_ + 1, timed, false};
}

bool Window::on_result(uint64_t packet_number) {
  if (packet_number < base_ || packet_number >= next_) return false;
  Entry& e = at(packet_number);
  if (e.done) return false;
  e.done = true;
  progress_ = true;
  ++held_;
  high_ = std::max(high_, packet_number + 1);
  uint64_t& of_thread = highs_[thread_of(packet_number)];
  of_thread = std::max(of_thread, packet_number + 1);
  return true;
}

void Window::on_ce(uint64_t packet_number, int64_t now) {
  if (shared_ && at(packet_number).sent_at > shrunk_at_ && shrink(7, 10, now)) fast_below_ = cwnd_;
}

void Window::answered(uint16_t stamp, bool is_new, int64_t now) {
  present_.lossy |= is_new;
  path_.add(((Window::stamp(now) + UINT16_MAX - stamp) % UINT16_MAX + 1) * kStampNs);  // stamps are cut off
}

void Window::acknowledge(std::span<const uint64_t> accepted, int64_t now) {
  for (uint64_t q : accepted) {
    const Entry& e = at(q);
    if (e.timed) samples_.push_back(now - e.sent_at);
  }
  credit_ += static_cast<uint64_t>(accepted.size()) * growth();
  const uint64_t steps = credit_ / (2 * cwnd_);
  credit_ %= 2 * cwnd_;
  cwnd_ = static_cast<uint32_t>(std::min<uint64_t>(cwnd_ + steps, limit_));
  while (base_ < next_ && at(base_).done) {
    ++base_;
    --held_;
  }
  if (base_ < flight_end_) return;
  if (!samples_.empty()) {
    const auto quartile = samples_.begin() + static_cast<std::ptrdiff_t>((samples_.size() - 1) / 4);
    std::nth_element(samples_.begin(), quartile, samples_.end());
    sample(*quartile);
    present_.least = std::min(present_.least, *std::min_element(samples_.begin(), quartile + 1));
    samples_.clear();
  }
  flight_end_ = next_;
  if (++flights_ < kEpochFlights) return;
  if (!present_.lossy) path_ = {};
  last_ = std::exchange(present_, {});
  flights_ = 0;
}

void Window::detect_lost(int64_t now, std::vector<uint64_t>& out) {
  const size_t before = out.size();
  bool loss = false, timer = false;
  bool missing = false, silent = false;  // of packets sent once: a later RESULT is held; or not, though it waits for nobody
  bool counted = false;
  uint32_t most = train();
  const uint32_t enough = shared_ ? std::min(reordering_threshold_, std::max(kLeastReorderingShared, cwnd_ / 2)) : reordering_threshold_;
  for (uint64_t q = base_; q < next_ && out.size() - before < most; ++q) {
    Entry& e = at(q);
    if (e.done) continue;
    if (now >= std::max(e.deadline, timers_held_until_)) {
      if (!timer) {
        back_off(now);
        most = std::max(1u, train() >> (std::max(unanswered_, kWholeBatches) - kWholeBatches));
      }
      timer = true;
    } else if (e.later_from < high_of_thread(q)) {
      if (!counted) {  // held_from_[i]: RESULTs held from packet number base + i on
        uint32_t total = 0;
        for (uint64_t p = high_; p-- > base_;) held_from_[p - base_] = total += at(p).done;
        counted = true;
      }
      if (held_from_[e.later_from - base_] < enough) continue;
      loss = true;
    } else {
      continue;
    }
    missing |= q < high_of_thread(q) && e.later_from == q + 1;
    silent |= q >= high_of_thread(q) && e.timed;
    e.timed = false;
    e.later_from = next_;
    e.deadline = now + timeout();
    out.push_back(q);
  }
  retransmissions_ += out.size() - before;
  if (timer) timers_held_until_ = now + round_trip();
  if (shared_) {
    if (missing && shrink(1, 2, now)) fast_below_ = cwnd_;
    if (silent) shrink(3, 4, now);
  } else if (timer) {
    shrink(3, 4, now);
  } else if (loss) {
    shrink(7, 8, now);
  }
  present_.lossy |= loss;
}

int64_t Window::loss_timer() const {
  int64_t earliest = -1;
  for (uint64_t q = base_; q < next_; ++q) {
    const Entry& e = at(q);
    if (!e.done && (earliest < 0 || e.deadline < earliest)) earliest = e.deadline;
  }
  return earliest < 0 ? -1 : std::max(earliest, timers_held_until_);
}

int64_t Window::rto() const {
  const bool lossy = present_.lossy || last_.lossy;
  const int64_t least = std::min(present_.least, last_.least);
  int64_t rto = rto_;
  if (least < INT64_MAX) rto = std::min(rto, std::max(kRoundTrips * least, lossy ? kRtoFloor : kRtoCeiling));
  // A queue makes other ranks late too, by up to a window.
  return path_.srtt > 0 ? std::max({path_.rto(), kRtoFloor, lossy ? 0 : rto, shared_ ? 2 * path_.srtt : 0}) : rto;
}

int64_t Window::timeout() const { return std::min(rto() << backoff_, std::max(rto(), kRtoCeiling)); }

void Window::back_off(int64_t now) {
  unanswered_ = progress_ ? 0 : std::min(unanswered_ + 1, kMostUnanswered);
  if (progress_) {
    backoff_ = 0;
  } else if (now - backed_off_at_ >= timeout() && timeout() < kRtoCeiling) {
    ++backoff_;
  } else {
    return;
  }
  progress_ = false;
  backed_off_at_ = now;
}

void Window::RoundTrip::add(int64_t rtt) {
  if (srtt == 0) {
    srtt = std::max<int64_t>(rtt, 1);
    rttvar = rtt / 2;
  } else {
    const int64_t error = srtt > rtt ? srtt - rtt : rtt - srtt;
    rttvar += floor_div(error - rttvar, 4);
    srtt = std::max<int64_t>(srtt + floor_div(rtt - srtt, 8), 1);
  }
}

void Window::sample(int64_t rtt) {
  measured_.add(rtt);
  rto_ = std::max(measured_.rto(), kRtoFloor);
}

// At most once a round trip; false: it has been.
bool Window::shrink(uint32_t numerator, uint32_t denominator, int64_t now) {
  if (shrunk_at_ >= 0 && now - shrunk_at_ < round_trip()) return false;
  shrunk_at_ = now;
  cwnd_ = std::max(cwnd_ * numerator / denominator, least_cwnd_);
  return true;
}

uint32_t Window::growth() const {
  if (!shared_) return 2 * std::max(batch_, cwnd_ / 4);
  return cwnd_ < fast_below_ ? 2 * std::max(1u, cwnd_ / 4) : 1;
}

}  // namespace switchagg
