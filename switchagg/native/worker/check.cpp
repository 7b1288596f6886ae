#include "switchagg/native/worker/check.h"

#include "switchagg/native/shared/wire.h"

namespace switchagg {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;  // of splitmix64
constexpr uint64_t kPoint = 0x1D8E4E27C47D124Fu;  // at which digests are evaluated, under 2^61 - 1
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr uint32_t kPartBits = 24, kPart = (1u << kPartBits) - 1;

// splitmix64's output for a state.
uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

PacketCheck::PacketCheck(uint32_t words, uint32_t workers, uint64_t nonce)
    : kernels_(choose_lane_kernels()), weights_(words), workers_(workers), nonce_(mixed(nonce)) {
  uint64_t state = 0;
  for (int32_t& weight : weights_) weight = static_cast<int32_t>(static_cast<uint32_t>(mixed(state += kStep) >> 32) | 1u);
}

// Packet numbers are under 2^55: times an odd number and as many ranks as there may be, two of them never give the same.
uint64_t PacketCheck::bound(uint64_t packet_number, uint64_t digest) const { return nonce_ + packet_number * kStep + digest; }

void PacketCheck::write(uint64_t packet_number, uint64_t digest, uint8_t* payload) const {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(payload);
  const uint64_t sum =
      static_cast<uint64_t>(kernels_.weighted_sum_be(words, weights_.data(), weights_.size())) + bound(packet_number, digest);
  uint8_t* const to = payload + 4 * weights_.size();
  wire::store32(to, static_cast<uint32_t>(sum) & kPart);
  wire::store32(to + 4, static_cast<uint32_t>(sum >> kPartBits) & kPart);
  wire::store32(to + 8, 1u << kPartBits | static_cast<uint32_t>(sum >> 2 * kPartBits));
}

bool PacketCheck::holds(uint64_t packet_number, uint64_t digest, const uint8_t* payload, bool all, bool wraps) const {
  const uint8_t* const from = payload + 4 * weights_.size();
  const uint32_t highest = wire::load32(from + 8), counted = highest >> kPartBits;
  const uint32_t ranks = counted == 0 ? 256 : counted;
  if (all ? ranks != workers_ : ranks > workers_) return false;
  const uint64_t told = wire::load32(from) + (uint64_t{wire::load32(from + 4)} << kPartBits) +
                        (uint64_t{highest & kPart} << 2 * kPartBits);
  const uint32_t* words = reinterpret_cast<const uint32_t*>(payload);
  const uint64_t is = static_cast<uint64_t>(kernels_.weighted_sum_be(words, weights_.data(), weights_.size())) +
                      ranks * bound(packet_number, digest);
  return wraps ? static_cast<uint32_t>(told) == static_cast<uint32_t>(is) : told == is;
}

// A polynomial over the integers modulo 2^61 - 1, by Horner's rule.
uint64_t digest(uint64_t before, std::span<const uint32_t> words) {
  uint64_t sum = before % kPrime;
  for (const uint32_t word : words) {
    const unsigned __int128 product = static_cast<unsigned __int128>(sum) * kPoint + word + 1;
    sum = static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
    if (sum >= kPrime) sum -= kPrime;
  }
  return sum;
}

void Claims::add(bool own) {
  if (count_ % kPerWord == 0) {
    own_.push_back(0);
    sums_.push_back(0);
  }
  own_.back() |= static_cast<uint32_t>(own) << kBits * (count_++ % kPerWord);
}

bool Claims::hold() const {
  for (size_t i = 0; i < count_; ++i)
    if ((sums_[i / kPerWord] >> kBits * (i % kPerWord) & ((1u << kBits) - 1)) == 0) return false;
  return true;
}

}  // namespace switchagg
