// A segment as its ranks agree on it once its plan has all its RESULTs: the union's blocks, in order, as one sequence of elements,
// and the range of exponents of each chunk. No I/O.
//
// The plan of a large segment of which a sum in limbs skips zero blocks has no exponents. They follow, of the chunks that have a
// block in the union.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "switchagg/native/worker/plan.h"

namespace switchagg {

// The fixed-point numbers of a chunk: an element is an integer times 2^unit, cut into `words` limbs of sign and magnitude.
struct LimbGrid {
  uint32_t words = 0;  // 0: all elements are zero
  bool cut = false;    // elements may have more below these words
  int bits = 0;        // of an element, also of what is cut off
  int limb_bits = 0;
  int shift = 0;  // the exponent field of an element whose mantissa is its lowest limb
  int unit = 0;

  // Of all that the elements have; or, `bounded`, of the highest words only.
  LimbGrid(const Call& call, const ChunkRange& range, bool bounded = false);
  // With more words below its own.
  LimbGrid with(uint32_t more) const;
  uint32_t mask() const { return (1u << limb_bits) - 1; }
};

// The exponent of the lowest bit that an element with this exponent field, or a larger one, can have.
int unit_of(const Call& call, int field);

class Sequence {
 public:
  // `plan` is null for the no-op baseline, which sends every element.
  Sequence(const Call& call, const Plan* plan, uint32_t words);

  bool whole() const { return whole_; }  // the union is all blocks
  uint64_t elements() const { return elements_; }
  uint64_t union_blocks() const { return union_blocks_; }
  const std::vector<uint32_t>& blocks() const { return blocks_; }  // of the union, unless it is whole
  bool has_all() const { return has_all_; }  // no block is zero on this rank
  bool has(uint64_t block) const { return !own_ || bit(own_, block); }
  bool in_union(uint64_t block) const { return whole_ || bit(union_, block); }
  const uint32_t* union_bitmap() const { return union_; }  // null where zero blocks are not skipped

  // The exponents that follow a plan without them, reduced with OR.
  uint64_t packets() const { return (own_exponents_.size() + words_ - 1) / words_; }
  bool encode(uint64_t packet, uint8_t* payload) const { return store_words(own_exponents_, packet, words_, payload); }
  void decode(uint64_t packet, const uint8_t* payload) { load_words(exponents_, packet, words_, payload); }
  void agree();  // after their RESULTs; changes nothing where the plan has exponents

  // Of all chunks; for sums in limbs, of those that have a block in the union.
  const std::vector<ChunkRange>& ranges() const { return ranges_; }
  const std::vector<LimbGrid>& grids() const { return grids_; }  // of these, for sums in limbs
  // Of this rank alone, in the places of ranges(); kept for claims (check.h).
  const std::vector<ChunkRange>& own_ranges() const { return own_ranges_; }
  const std::vector<uint32_t>& exponents() const { return exponents_; }  // that follow the plan, as agreed
  uint64_t chunk(size_t place) const { return chunks_.empty() ? place : chunks_[place]; }

  // Calls f(element, count) for the longest runs of elements that are neighbours in the tensor, in order.
  template <typename F>
  void each_part(F&& f) const {
    if (whole_ && elements_ > 0) f(uint64_t{0}, elements_);
    for (size_t k = 0, next; k < blocks_.size(); k = next) {
      for (next = k + 1; next < blocks_.size() && blocks_[next] == blocks_[next - 1] + 1;) ++next;
      const uint64_t element = uint64_t{blocks_[k]} * call_.block;
      f(element, std::min((blocks_[next - 1] + uint64_t{1}) * call_.block, call_.count) - element);
    }
  }

 private:
  void make_grids();
  static bool bit(const uint32_t* bits, uint64_t i) { return (bits[i >> 5] >> (i & 31)) & 1; }

  const Call& call_;
  uint32_t words_;
  bool whole_ = true, has_all_ = true;
  uint64_t union_blocks_, elements_;
  std::vector<uint32_t> blocks_;
  const uint32_t* own_ = nullptr;  // bit a block, in the plan
  const uint32_t* union_ = nullptr;
  std::vector<uint64_t> chunks_;  // of these ranges, for sums in limbs
  std::vector<uint32_t> own_exponents_, exponents_;
  std::vector<ChunkRange> ranges_, own_ranges_;
  std::vector<LimbGrid> grids_;
};

}  // namespace switchagg
