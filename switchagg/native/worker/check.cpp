#include "switchagg/native/worker/check.h"

#include <cstring>

#include "switchagg/native/shared/splitmix.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg {
namespace {

constexpr uint64_t kPoint = 0x1D8E4E27C47D124Fu;  // at which digests are evaluated, under 2^61 - 1
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr uint32_t kPartBits = 24, kPart = (1u << kPartBits) - 1;

}  // namespace

// Odd weights: no change of a single word leaves the sum as it is.
PacketCheck::PacketCheck(uint32_t words, uint32_t workers, uint64_t nonce)
    : kernels_(choose_lane_kernels()), words_(words), workers_(workers), nonce_(splitmix(nonce)), sums_(1) {
  sums_[0].point = kPoint;
  uint64_t state = 0;
  for (uint32_t i = 0; i < words; ++i)
    sums_[0].weights.push_back(static_cast<int32_t>(static_cast<uint32_t>(splitmix(state += kSplitMixStep) >> 32) | 1u));
  sums_[0].weights.resize(words + kWords + 1);
}

PacketCheck::PacketCheck(uint32_t words, uint32_t workers, std::span<const uint32_t> secret)
    : kernels_(choose_lane_kernels()), words_(words), workers_(workers), nonce_(0), sums_(2) {
  for (Sum& sum : sums_) {
    sum.point = (uint64_t{secret[0]} << 32 | secret[1]) % kPrime;
    sum.weights.reserve(words + kSealedWords + 1);  // none is left behind elsewhere
    for (const uint32_t word : secret.subspan(2, words)) sum.weights.push_back(static_cast<int32_t>(word));
    sum.weights.resize(words + kSealedWords + 1);
    secret = secret.subspan(2 + words);
  }
}

PacketCheck::~PacketCheck() {
  for (Sum& sum : sums_) {
    explicit_bzero(sum.weights.data(), sum.weights.size() * sizeof(int32_t));
    explicit_bzero(&sum.point, sizeof(sum.point));
  }
}

// Packet numbers are under 2^55: times an odd number and as many ranks as there may be, two of them never give the same. Digests
// are mixed, so that those of other ranks do not add up to this one's.
uint64_t PacketCheck::bound(uint64_t packet_number, uint64_t digest) const {
  return nonce_ + packet_number * kSplitMixStep + splitmix(digest);
}

PacketCheck::Sums PacketCheck::weighted(const uint8_t* payload, size_t first) const {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(payload);
  Sums sums;
  for (size_t i = 0; i < sums_.size(); ++i) sums.of[i] = kernels_.weighted_sum_be(words + first, weights(i) + first, words_ - first);
  return sums;
}

void PacketCheck::write(uint64_t packet_number, const Digest& digest, const Sums& sums, uint8_t* payload) const {
  uint8_t* to = payload + 4 * size_t{words_};
  for (size_t i = 0; i < sums_.size(); ++i, to += 4 * kWords) {
    const uint64_t sum = sums.of[i] + bound(packet_number, digest[i]);
    wire::store32(to, static_cast<uint32_t>(sum) & kPart);
    wire::store32(to + 4, static_cast<uint32_t>(sum >> kPartBits) & kPart);
    wire::store32(to + 8, 1u << kPartBits | static_cast<uint32_t>(sum >> 2 * kPartBits));
  }
}

bool PacketCheck::holds(uint64_t packet_number, const Digest& digest, const Sums& sums, const uint8_t* payload,
                        std::optional<uint32_t> from, bool wraps) const {
  const uint8_t* at = payload + 4 * size_t{words_};
  bool right = true;
  for (size_t i = 0; i < sums_.size(); ++i, at += 4 * kWords) {
    const uint32_t highest = wire::load32(at + 8), counted = highest >> kPartBits;
    const uint32_t ranks = counted == 0 ? 256 : counted;
    const uint64_t told = wire::load32(at) + (uint64_t{wire::load32(at + 4)} << kPartBits) +
                          (uint64_t{highest & kPart} << 2 * kPartBits);
    const uint64_t is = sums.of[i] + ranks * bound(packet_number, digest[i]);
    right &= from ? ranks == *from : ranks <= workers_;
    right &= wraps ? static_cast<uint32_t>(told) == static_cast<uint32_t>(is) : told == is;
  }
  return right;
}

// A polynomial over the integers modulo 2^61 - 1, by Horner's rule.
Digest PacketCheck::extended(Digest before, std::span<const uint32_t> words) const {
  for (size_t i = 0; i < sums_.size(); ++i) {
    uint64_t value = before[i];
    for (const uint32_t word : words) {
      const unsigned __int128 product = static_cast<unsigned __int128>(value) * sums_[i].point + word + 1;
      value = static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
      if (value >= kPrime) value -= kPrime;
    }
    before[i] = value;
  }
  return before;
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
