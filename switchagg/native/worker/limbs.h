// Sums in limbs: the words that an element needs, and the rounding of a sum of words to the element's type. docs/protocol.md,
// sections 5 to 7, defines and proves it; tests/reference/exact.py is an oracle of it. No I/O.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchagg/native/worker/sequence.h"

namespace switchagg {

// The groups of a segment's elements of which the first words cut off too much, a bit each, of the chunks where that may be.
// Reduced with OR, before the stream.
class Refinement {
 public:
  // `sequence` has agreed on its ranges.
  Refinement(const Call& call, const Plan& plan, const Sequence& sequence, uint32_t words);
  uint64_t packets() const { return (own_.size() + words_ - 1) / words_; }
  bool encode(uint64_t packet, uint8_t* payload) const { return store_words(own_, packet, words_, payload); }
  void decode(uint64_t packet, const uint8_t* payload) { load_words(agreed_, packet, words_, payload); }
  // After all RESULTs: calls f(group) for the groups that need all words of a chunk, given its place in the sequence.
  template <typename F>
  void each_group(size_t chunk, F&& f) const {
    if (places_[chunk] < 0) return;
    for (uint32_t w = 0; w < kMarks; ++w)
      for (uint32_t left = agreed_[static_cast<size_t>(places_[chunk]) + w]; left; left &= left - 1)
        f(32 * w + static_cast<uint32_t>(std::countr_zero(left)));
  }

 private:
  static constexpr uint32_t kMarks = 1024 / kGroup / 32;  // words a chunk

  uint32_t words_;
  std::vector<int32_t> places_;  // of chunks in what follows; -1 where no group can need more
  std::vector<uint32_t> own_, agreed_;
};

// Rounds sums of limbs to nearest even, once: element i is the sum over j of the signed words[j * stride + i], big-endian,
// times 2^(j limb_bits + unit), divided by `divisor`.
template <typename T>
void round_sums(const uint32_t* words, size_t stride, const LimbGrid& grid, size_t n, uint32_t divisor, T* out);

// Types of the elements that are results.
enum class Float16 : uint16_t {};
enum class BFloat16 : uint16_t {};

}  // namespace switchagg
