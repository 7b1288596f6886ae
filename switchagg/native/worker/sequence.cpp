#include "switchagg/native/worker/sequence.h"

#include <algorithm>

namespace switchagg {

namespace {

int precision_of(DType dtype) { return dtype == DType::f64 ? 53 : dtype == DType::f32 ? 24 : dtype == DType::f16 ? 11 : 8; }
int bias_of(DType dtype) { return dtype == DType::f64 ? 1023 : 127; }
int least_of(DType dtype) { return dtype == DType::f16 ? 113 : 1; }  // field of a normal number; of halves, as float32

}  // namespace

int unit_of(const Call& call, int field) {
  const DType dtype = call.scanned_type();
  return std::max(field, least_of(dtype)) - bias_of(dtype) - (precision_of(dtype) - 1);
}

LimbGrid::LimbGrid(const Call& call, const ChunkRange& range, bool bounded) {
  if (range.highest == kNoExponent) return;
  const DType dtype = call.scanned_type();
  const int container = dtype == DType::f64 ? 53 : 24, precision = precision_of(dtype);
  const int highest = std::max<int>(range.highest, 1);
  int lowest = bounded ? std::min(least_of(dtype), highest) : std::max<int>(range.lowest, 1);
  limb_bits = 31 - static_cast<int>(std::bit_width(call.workers - 1));
  bits = highest - lowest + precision;
  words = static_cast<uint32_t>((bits + limb_bits - 1) / limb_bits);
  if (const uint32_t first = dtype == DType::f64 ? 3 : 1; bounded && words > first) {
    cut = true;
    words = first;
    lowest = highest + precision - static_cast<int>(first) * limb_bits;
  }
  shift = lowest + container - precision;
  unit = lowest - bias_of(dtype) - (precision - 1);
}

LimbGrid LimbGrid::with(uint32_t more) const {
  LimbGrid grid = *this;
  const int places = static_cast<int>(more) * limb_bits;
  grid.words += more;
  grid.cut = false;
  grid.shift -= places;
  grid.unit -= places;
  return grid;
}

Sequence::Sequence(const Call& call, const Plan* plan, uint32_t words)
    : call_(call), words_(words), union_blocks_(call.blocks()), elements_(call.count) {
  if (!plan) return;
  if (call.sparse) {
    const LaneKernels& kernels = choose_lane_kernels();
    const uint64_t bitmap_words = (call.blocks() + 31) / 32;
    own_ = plan->own_bitmap();
    union_ = plan->union_bitmap();
    union_blocks_ = kernels.count_bits(union_, bitmap_words);
    whole_ = union_blocks_ == call.blocks();
    has_all_ = whole_ && kernels.count_bits(own_, bitmap_words) == call.blocks();
    if (!whole_) {
      blocks_.reserve(union_blocks_);
      each_bit(union_, call.blocks(), [&](uint64_t block) { blocks_.push_back(static_cast<uint32_t>(block)); });
      elements_ = union_blocks_ * call.block;
      if (union_blocks_ && blocks_.back() == call.blocks() - 1)
        elements_ -= call.blocks() * call.block - call.count;  // the tensor's last block may be short
    }
  }
  if (call.in_limbs())
    each_part([&](uint64_t element, uint64_t count) {
      const uint64_t first = element >> call.chunk_shift(), last = (element + count - 1) >> call.chunk_shift();
      for (uint64_t c = std::max(first, chunks_.empty() ? 0 : chunks_.back() + 1); c <= last; ++c) chunks_.push_back(c);
    });
  if (!call.exponents_apart()) {
    ranges_ = plan->ranges();
    if (call.checked) own_ranges_ = plan->own_ranges();
    for (std::vector<ChunkRange>* all : {&ranges_, &own_ranges_}) {
      if (!call.in_limbs() || all->empty()) continue;
      for (size_t i = 0; i < chunks_.size(); ++i) (*all)[i] = (*all)[chunks_[i]];
      all->resize(chunks_.size());
    }
    make_grids();
    return;
  }
  const uint32_t each = call.exponent_words();
  own_exponents_.resize(chunks_.size() * each);
  for (size_t i = 0; i < chunks_.size(); ++i)
    std::copy_n(plan->own_exponents().begin() + static_cast<std::ptrdiff_t>(chunks_[i] * each), each,
                own_exponents_.begin() + static_cast<std::ptrdiff_t>(i * each));
  exponents_.assign(own_exponents_.size(), 0);
}

void Sequence::agree() {
  if (!call_.exponents_apart()) return;
  ranges_ = ranges_of(call_, exponents_.data(), chunks_.size());
  if (call_.checked) own_ranges_ = ranges_of(call_, own_exponents_.data(), chunks_.size());
  make_grids();
}

void Sequence::make_grids() {
  if (!call_.in_limbs()) return;
  grids_.reserve(ranges_.size());
  for (const ChunkRange& range : ranges_) grids_.emplace_back(call_, range, call_.bits == kBounded);
}

}  // namespace switchagg
