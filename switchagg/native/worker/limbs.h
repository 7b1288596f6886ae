// Sums in limbs: the words that an element needs, and the rounding of a sum of words to the element's type. docs/protocol.md,
// sections 5 to 7, defines and proves it; tests/reference/exact.py is an oracle of it. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchagg/native/worker/plan.h"

namespace switchagg {

// The fixed-point numbers of a chunk: an element is an integer times 2^unit, cut into `words` limbs of sign and magnitude.
struct LimbGrid {
  uint32_t words = 0;  // 0: all elements are zero
  int limb_bits = 0;
  int shift = 0;  // the exponent field of an element whose mantissa is its lowest limb
  int unit = 0;
  bool cut = false;  // elements are not always multiples of the unit

  // Of all that the elements have; or, with `cut`, of the highest words only.
  LimbGrid(const Call& call, const ChunkRange& range, bool cut = false);
  uint32_t mask() const { return (1u << limb_bits) - 1; }
};

// The groups of a segment's elements that need more than the first words, a bit each, of chunks that would otherwise cut
// something off. Reduced with OR, after the plan and before the stream.
class Refinement {
 public:
  static constexpr uint32_t kGroup = 32;  // elements

  Refinement(const Call& call, const Plan& plan, uint32_t words);
  uint64_t packets() const { return (own_.size() + words_ - 1) / words_; }
  bool encode(uint64_t packet, uint8_t* payload) const { return store_words(own_, packet, words_, payload); }
  void decode(uint64_t packet, const uint8_t* payload) { load_words(agreed_, packet, words_, payload); }
  // After all RESULTs: the chunk's groups that need all words; all of them where none is cut.
  uint32_t groups(uint64_t chunk) const { return places_[chunk] < 0 ? ~0u : agreed_[static_cast<size_t>(places_[chunk])]; }

 private:
  static uint32_t own_groups(const Call& call, const Plan& plan, uint64_t chunk, uint64_t least);

  uint32_t words_;
  std::vector<int32_t> places_;  // of chunks in what follows; -1 where nothing is cut
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
