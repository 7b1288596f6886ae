#include "switchagg/native/worker/deal.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace switchagg {
namespace {

constexpr uint64_t kFirstGrowth = 8, kLeastGrowth = 1, kMostGrowth = 16;
// Most numbers have 32 bits, of which division is faster.
constexpr std::pair<uint64_t, uint32_t> divided(uint64_t number, uint32_t by) {
  if (number <= UINT32_MAX) return {static_cast<uint32_t>(number) / by, static_cast<uint32_t>(number) % by};
  return {number / by, static_cast<uint32_t>(number % by)};
}

constexpr int64_t kMuch = 8;  // a stripe is slow if it is waited for, of all time, this part longer than the one that is least

}  // namespace

// Smooth weighted round-robin: the packets of each stripe are spread evenly.
Deal::Part::Part(uint64_t at, std::vector<uint64_t> from, std::vector<uint32_t> by)
    : first(at), numbers(std::move(from)), weights(std::move(by)), places(weights.size()) {
  uint32_t divisor = 0, sum = 0;
  for (uint32_t each : weights) {
    divisor = std::gcd(divisor, each);
    sum += each;
  }
  std::vector<int64_t> credit(weights.size());
  for (uint32_t i = 0; i < sum / divisor; ++i) {
    for (size_t s = 0; s < credit.size(); ++s) credit[s] += weights[s];
    const auto most = std::ranges::max_element(credit);
    *most -= sum;
    const auto stripe = static_cast<uint32_t>(most - credit.begin());
    turns.push_back(stripe);
    before.push_back(static_cast<uint32_t>(places[stripe].size()));
    places[stripe].push_back(i);
  }
}

Deal::Place Deal::Part::place(uint64_t packet_number) const {
  const auto [cycle, i] = divided(packet_number - first, static_cast<uint32_t>(turns.size()));
  return {turns[i], numbers[turns[i]] + cycle * places[turns[i]].size() + before[i]};
}

Deal::Deal(std::vector<uint32_t> weights, uint64_t kept) : kept_(kept) {
  std::vector<uint64_t> numbers(weights.size());
  parts_.emplace_back(0, std::move(numbers), std::move(weights));
}

void Deal::change(uint64_t first, WeightChange to) {
  const Part& last = parts_.back();
  if (to.weight == 0 || to.weight > kMostWeight || to.stripe >= last.weights.size() || last.weights[to.stripe] == to.weight) return;
  std::vector<uint32_t> weights = last.weights;
  weights[to.stripe] = to.weight;
  const auto [cycles, rest] = divided(first - last.first, static_cast<uint32_t>(last.turns.size()));
  std::vector<uint64_t> numbers = last.numbers;
  for (size_t s = 0; s < numbers.size(); ++s) numbers[s] += cycles * last.places[s].size();
  for (uint64_t i = 0; i < rest; ++i) ++numbers[last.turns[i]];
  parts_.emplace_back(first, std::move(numbers), std::move(weights));
  const auto is_past = [this](uint64_t begun, uint64_t now) { return begun + kept_ <= now; };
  while (parts_.size() > 1 && std::ranges::equal(parts_[1].numbers, parts_.back().numbers, is_past)) parts_.pop_front();
}

Deal::Place Deal::place(uint64_t packet_number) const {
  auto part = parts_.rbegin();
  while (packet_number < part->first && std::next(part) != parts_.rend()) ++part;
  return part->place(std::max(packet_number, part->first));  // of what is long past: anything
}

uint64_t Deal::packet_number(uint32_t stripe, uint64_t number) const {
  auto part = parts_.rbegin();
  while (number < part->numbers[stripe])
    if (++part == parts_.rend()) return UINT64_MAX;  // long past
  const auto& places = part->places[stripe];
  const auto [cycle, i] = divided(number - part->numbers[stripe], static_cast<uint32_t>(places.size()));
  return part->first + cycle * part->turns.size() + places[i];
}

StripeRates::StripeRates(std::vector<uint32_t> weights, uint64_t period)
    : period_(period), wanted_(std::move(weights)), rates_(wanted_.size()), growth_(wanted_.size(), kFirstGrowth), waited_(wanted_.size()) {}

void StripeRates::begin(int64_t now, uint64_t packets, std::optional<uint32_t> waits) {
  since_ = now;
  packets_ += packets;
  waits_ = waits;
}

void StripeRates::end(int64_t now) {
  if (since_ < 0) return;
  spent_ += now - since_;
  if (waits_) waited_[*waits_] += now - since_;
  since_ = -1;
}

WeightChange StripeRates::next(const std::vector<uint32_t>& weights) {
  if (packets_ >= period_) decide(weights);
  for (uint32_t s = 0; s < wanted_.size(); ++s)
    if (wanted_[s] != weights[s]) {
      begin_period();
      return {s, wanted_[s]};
    }
  return {};
}

void StripeRates::begin_period() {
  packets_ = 0;
  spent_ = 0;
  std::ranges::fill(waited_, 0);
}

void StripeRates::decide(const std::vector<uint32_t>& weights) {
  const int64_t least = std::ranges::min(waited_);
  const auto is_slow = [&](int64_t waited) { return waited > least && kMuch * (waited - least) >= spent_; };
  if (std::ranges::any_of(waited_, is_slow)) {
    const uint64_t sum = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    for (size_t s = 0; s < rates_.size(); ++s) {
      const uint64_t pace = (std::min(packets_, uint64_t{1} << 28) * weights[s] << 30) / (sum * static_cast<uint64_t>(spent_));
      if (is_slow(waited_[s])) {
        rates_[s] = rates_[s] ? (rates_[s] + pace) / 2 : pace;
        growth_[s] = kLeastGrowth;
      } else {
        rates_[s] = std::max(rates_[s], pace + pace * growth_[s] / 32);
        growth_[s] = std::min(2 * growth_[s], kMostGrowth);
      }
    }
    const uint64_t most = std::max<uint64_t>(1, std::ranges::max(rates_));
    for (size_t s = 0; s < rates_.size(); ++s)
      wanted_[s] = static_cast<uint32_t>(std::max<uint64_t>(1, (kMostWeight * rates_[s] + most / 2) / most));
  }
  begin_period();
}

}  // namespace switchagg
