// Samples the density of tensors, also of those that are not scanned for zeros: one group of 1,024 elements in about
// 131,072, before it is sent and after the sum was written, in blocks of 16, 32, ... 1,024. No I/O.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "switchagg/native/worker/plan.h"

namespace switchagg {

struct DensityCounts {
  static constexpr uint32_t kSizes = 7;  // blocks of 16 << i elements
  uint64_t groups = 0, summed = 0;  // sampled; sampled again, if lanes were too wide to round a sum to zero
  std::array<uint64_t, kSizes> own{}, sum{};  // blocks of each size that were not zero
};

class DensityProbe {
 public:
  static constexpr uint64_t kGroup = 1024, kStride = 1 << 17;

  // Draws groups of a segment, where the rank both has elements and gets sums, and samples its own elements there.
  // `segment` is its number. Returns the groups' first elements.
  std::vector<uint64_t> sample_input(const Call& call, uint32_t segment);
  // Samples the same groups after the sums were written.
  void sample_result(const Call& call, const std::vector<uint64_t>& places);

  const DensityCounts& counts() const { return counts_; }

 private:
  uint64_t seen_ = 0;  // elements since the last group
  DensityCounts counts_;
};

}  // namespace switchagg
