// How dense tensors are, at little cost and also where nobody looks for zeros: one group of 1,024 elements in about 131,072
// is looked at before it is sent and after the sum was written, in blocks of 16, 32, ... 1,024. worker_lib/density.py is the
// readable twin. No I/O.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "switchagg/native/worker/plan.h"

namespace switchagg {

struct DensityCounts {
  static constexpr uint32_t kSizes = 7;  // blocks of 16 << i elements
  uint64_t groups = 0, summed = 0;  // looked at; and again, where lanes were too wide to round a sum to zero
  std::array<uint64_t, kSizes> own{}, sum{};  // blocks of each size that were not zero
};

class DensityProbe {
 public:
  static constexpr uint64_t kGroup = 1024, kStride = 1 << 17;

  // Draws the groups of a segment to look at, and looks at this rank's own elements there. `segment` is its number.
  // The groups lie where the rank both has elements and gets sums.
  std::vector<uint64_t> look(const Call& call, uint32_t segment);
  // The same groups once the sums are there.
  void look_again(const Call& call, const std::vector<uint64_t>& places);

  const DensityCounts& counts() const { return counts_; }

 private:
  uint64_t seen_ = 0;  // elements since the last group
  DensityCounts counts_;
};

}  // namespace switchagg
