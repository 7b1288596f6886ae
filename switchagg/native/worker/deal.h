// Packet numbers dealt to several switches by weights, and the weights that suit their rates (docs/protocol.md, section 16).
// No I/O, no clock. tests/reference/deal.py is the reference implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace switchagg {

inline constexpr uint32_t kMostWeight = 32;

// One stripe's weight, as rank 0's header tells it.
struct WeightChange {
  uint32_t stripe = 0, weight = 0;  // weight 0: none changes
};

class Deal {
 public:
  struct Place {
    uint32_t stripe;
    uint64_t number;  // of the stripe
  };

  // `kept`: numbers of each stripe, the last before a change, that packet_number() still has to know.
  explicit Deal(std::vector<uint32_t> weights, uint64_t kept);

  const std::vector<uint32_t>& weights() const { return parts_.back().weights; }
  // From packet number `first` on, which is not dealt yet. A weight or stripe that cannot be changes nothing.
  void change(uint64_t first, WeightChange to);
  Place place(uint64_t packet_number) const;
  uint64_t packet_number(uint32_t stripe, uint64_t number) const;

 private:
  // Packet numbers from `first` on, dealt with the same weights, in cycles.
  struct Part {
    Part(uint64_t at, std::vector<uint64_t> from, std::vector<uint32_t> by);
    Place place(uint64_t packet_number) const;

    uint64_t first;
    std::vector<uint64_t> numbers;  // of stripes, that they begin with
    std::vector<uint32_t> weights;
    std::vector<uint32_t> turns;               // of a cycle: the stripe of each packet,
    std::vector<uint32_t> before;              // and how many packets of that stripe come before it
    std::vector<std::vector<uint32_t>> places; // of each stripe: where in the cycle its packets are
  };

  uint64_t kept_;
  std::deque<Part> parts_;
};

// The measurements of rank 0. Packets are built in order, so all stripes go as fast as the one that others wait for: its rate is
// known. The rates of the others are at least what they did; they are tried with a little more, and more each time.
class StripeRates {
 public:
  // `period`: packets from one decision to the next.
  StripeRates(std::vector<uint32_t> weights, uint64_t period);

  // Packets were sent, at `now`, and there are more. `waits`: for room in this stripe, while another has little to do.
  void begin(int64_t now, uint64_t packets, std::optional<uint32_t> waits);
  void end(int64_t now);  // of what begin() has told
  void stop() { since_ = -1; }  // it does not count
  // At the beginning of a collective, of the weights in force: what is to change.
  WeightChange next(const std::vector<uint32_t>& weights);

 private:
  void decide(const std::vector<uint32_t>& weights);
  void begin_period();  // measures anew

  uint64_t period_;
  std::vector<uint32_t> wanted_;
  std::vector<uint64_t> rates_;   // packets in 2^30 ns, times the sum of weights; 0: not known
  std::vector<uint64_t> growth_;  // 32nds that a rate is tried to exceed what was seen
  std::vector<int64_t> waited_;   // nanoseconds in this period that others waited for a stripe
  int64_t since_ = -1, spent_ = 0;
  std::optional<uint32_t> waits_;
  uint64_t packets_ = 0;
};

}  // namespace switchagg
