#include "switchagg/native/worker/refinement.h"

#include <bit>
#include <cmath>

#include "switchagg/native/worker/limbs.h"
#include "switchagg/native/worker/scale.h"

namespace switchagg {

namespace {

// The least magnitude of a sum that is not small; of float64, without its lowest word. Each rank is off by half a unit, or by one
// where words are cut.
int64_t least_sum(const Call& call, int limb_bits) {
  const int64_t ranks = call.workers;
  if (call.scanned_type() == DType::f64) return (ranks << (52 - limb_bits)) + (int64_t{1} << (31 - limb_bits));
  return ranks * (limb_bits >= 24 ? 2050 : 4099);
}

}  // namespace

double least_large(const Call& call, const LimbGrid& grid) {
  const bool wide = call.scanned_type() == DType::f64;
  return std::ldexp(wide ? std::ldexp(call.workers, 52) : static_cast<double>(least_sum(call, grid.limb_bits)), grid.unit);
}

Marks::Marks(const Call& call, const Sequence& sequence, uint32_t words) : words_(words), at_(sequence.grids().size()) {
  for (uint32_t c = 0; c < at_.size(); ++c) {
    const LimbGrid& grid = sequence.grids()[c];
    if (!grid.cut) continue;
    at_[c] = static_cast<uint32_t>(own_.size());
    own_.resize(own_.size() + kWords, 0);
    const double least = least_large(call, grid);
    const uint64_t first = sequence.chunk(c) << kBoundedChunkShift;
    const uint64_t end = std::min(first + (uint64_t{1} << kBoundedChunkShift), call.count);
    for (uint64_t element = first; element < end; element += kGroup) {
      const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(kGroup, end - element));
      uint32_t wanted = count == 32 ? ~0u : (1u << count) - 1, zero = 0;
      if (!sequence.has_all()) {
        const auto bits = [&](uint64_t from, uint64_t to) { return (~uint64_t{0} >> (64 - (to - from))) << (from - element); };
        each_block(call, element, element + count, [&](uint64_t b, uint64_t from, uint64_t to) {
          if (!sequence.in_union(b)) wanted &= ~static_cast<uint32_t>(bits(from, to));
          if (!sequence.has(b)) zero |= static_cast<uint32_t>(bits(from, to));
        });
      }
      if (wanted & zero) continue;
      const uint64_t group = (element - first) / kGroup;
      if (wanted == 0 || (wanted & ~large(call, element, count, least)) == 0)
        own_[at_[c] + group / 32] |= 1u << (group % 32);
    }
  }
  marks_.assign(own_.size(), 0);
}

// A bit for each of `count` elements that is large.
uint32_t Marks::large(const Call& call, uint64_t element, uint32_t count, double least) {
  const LaneKernels& kernels = choose_lane_kernels();
  uint32_t bits = 0, nonzero;
  const auto each = [&](const auto* x) {
    const auto bound = static_cast<std::remove_cvref_t<decltype(*x)>>(least);
    for (uint32_t i = 0; i < count; ++i) bits |= static_cast<uint32_t>(std::abs(x[i]) >= bound) << i;
    return bits;
  };
  if (call.dtype == DType::f64) return each(reinterpret_cast<const double*>(call.in) + element);
  const float* x = reinterpret_cast<const float*>(call.in) + element;
  if (call.dtype != DType::f32) {
    wide_.resize(kGroup);
    const uint16_t* const half = reinterpret_cast<const uint16_t*>(call.in) + element;
    (call.dtype == DType::f16 ? kernels.widen_f16 : kernels.widen_bf16)(half, count, wide_.data());
    x = wide_.data();
  }
  return count == kGroup ? kernels.large32(x, static_cast<float>(least), &nonzero) : each(x);
}

uint32_t Marks::unmarked(uint32_t chunk, uint32_t first) const {
  const uint32_t* const bits = marks_.data() + at_[chunk];
  const uint32_t group = first / kGroup, offset = first % kGroup;
  const auto marked = [&](uint32_t g) { return bits[g / 32] >> (g % 32) & 1; };
  uint32_t found = marked(group) ? 0 : ~0u >> offset;
  if (offset > 0 && group + 1 < 32 * kWords && !marked(group + 1)) found |= ~0u << (kGroup - offset);
  return found;
}

Refinement::Refinement(const Call& call, const Sequence& sequence, const Marks* marks, uint32_t words)
    : call_(call),
      sequence_(sequence),
      marks_(marks),
      kernels_(choose_lane_kernels()),
      words_(words),
      wide_(call.scanned_type() == DType::f64),
      limb_bits_(31 - static_cast<int>(std::bit_width(call.workers - 1))),
      least_(least_sum(call, limb_bits_)),
      few_(sequence.grids().size()) {}

// True if there are small sums among these, at most kFind of them: keep() has to follow.
bool Refinement::find(uint32_t chunk, uint64_t element, const uint32_t* sums, size_t stride, uint32_t count) {
  found_of_ = count;
  if (marks_) {
    found_ = 0;
    const uint32_t first = static_cast<uint32_t>(element) - first_of(chunk);
    for (uint32_t i = 0; i < count; i += 32) {
      const uint32_t left = count - i, bits = marks_->unmarked(chunk, first + i) & (left < 32 ? (1u << left) - 1 : ~0u);
      small_[i / 32] = zero_[i / 32] = bits;
      found_ |= static_cast<uint32_t>(bits != 0) << (i / 32);
    }
    return found_ != 0;
  }
  found_ = wide_ ? kernels_.small_sums64(sums, stride, count, limb_bits_, least_, small_.data(), zero_.data())
                 : kernels_.small_sums32(sums, count, static_cast<uint32_t>(least_), small_.data(), zero_.data());
  return found_ != 0;
}

template <typename T>
void Refinement::keep(uint32_t chunk, uint64_t element, const uint32_t* sums, size_t stride, const T* x) {
  const uint32_t planes = sequence_.grids()[chunk].words;
  const T least = static_cast<T>(large(chunk));
  for (uint32_t words = found_; words; words &= words - 1) {
    const uint32_t w = static_cast<uint32_t>(std::countr_zero(words)), small = small_[w], zero = zero_[w];
    uint32_t nonzero = 0, large = 0;
    if (x && sizeof(T) == sizeof(float) && 32 * w + 32 <= found_of_) {
      large = kernels_.large32(reinterpret_cast<const float*>(x) + 32 * w, static_cast<float>(least), &nonzero) & small;
    } else {
      for (uint32_t left = x ? small : 0; left; left &= left - 1) {
        const uint32_t bit = static_cast<uint32_t>(std::countr_zero(left));
        nonzero |= static_cast<uint32_t>(x[32 * w + bit] != 0) << bit;
        large |= static_cast<uint32_t>(std::abs(x[32 * w + bit]) >= least) << bit;
      }
    }
    sums_.push_back({static_cast<uint32_t>(element) + 32 * w, small, zero, large});
    uint32_t wanted = small & (~zero | nonzero);
    for (uint32_t left = marks_ && sums ? small & ~wanted : 0; left; left &= left - 1) {
      const uint32_t i = 32 * w + static_cast<uint32_t>(std::countr_zero(left));
      for (uint32_t j = 0; j < planes; ++j)
        if (sums[j * stride + i] != 0) wanted |= left & -left;
    }
    if (few_[chunk] >= kFew) wanted &= ~large;
    few_[chunk] += static_cast<uint32_t>(std::popcount(wanted));
    for (; wanted; wanted &= wanted - 1) {
      const uint32_t bit = static_cast<uint32_t>(std::countr_zero(wanted)), i = 32 * w + bit;
      Noted& noted = noted_.emplace_back(Noted{static_cast<uint32_t>(element) + i, {}, x ? static_cast<double>(x[i]) : 0.0});
      if (!sums || (!marks_ && zero >> bit & 1)) continue;
      for (uint32_t j = 0; j < planes; ++j) noted.sum[j] = sums[j * stride + i];
    }
    small_[w] = zero_[w] = 0;
  }
}

template void Refinement::keep(uint32_t, uint64_t, const uint32_t*, size_t, const float*);
template void Refinement::keep(uint32_t, uint64_t, const uint32_t*, size_t, const double*);

// Calls f(small) for the chunks that have small sums, in order.
template <typename F>
void Refinement::each_chunk(F&& f) const {
  size_t word = 0, noted = 0;
  for (uint32_t c = 0; word < sums_.size(); ++c) {
    const uint64_t end = uint64_t{first_of(c)} + kChunk;
    Small small{c, word, word, noted, noted, 0, 0};
    for (; word < sums_.size() && sums_[word].element < end; ++word) {
      small.sums += static_cast<uint64_t>(std::popcount(sums_[word].small));
      small.zeros += static_cast<uint64_t>(std::popcount(sums_[word].zero));
    }
    if (word == small.begin) continue;
    while (noted < noted_.size() && noted_[noted].element < end) ++noted;
    small.end = word;
    small.noted_end = noted;
    f(small);
  }
}

// Words below the first ones of an element with this exponent field, or a larger one.
uint32_t Refinement::words_below(uint32_t chunk, int field) const {
  const LimbGrid& grid = sequence_.grids()[chunk];
  return static_cast<uint32_t>((std::max(grid.unit - unit_of(call_, field), 0) + limb_bits_ - 1) / limb_bits_);
}

namespace {

// `count` of `bits` from number i on, 1 to 32 of them; and the reverse.
uint32_t window(const uint32_t* bits, size_t i, uint32_t count) {
  const uint32_t shift = i % 32, first = bits[i / 32] >> shift;
  const uint32_t all = shift + count > 32 ? first | bits[i / 32 + 1] << (32 - shift) : first;
  return count == 32 ? all : all & ((1u << count) - 1);
}
void set_window(uint32_t* bits, size_t i, uint32_t count, uint32_t value) {
  const uint32_t shift = i % 32;
  bits[i / 32] |= value << shift;
  if (shift + count > 32) bits[i / 32 + 1] |= value >> (32 - shift);
}

// Those of `bits` at the places that `of` has, next to each other.
uint32_t packed(uint32_t bits, uint32_t of) {
  if (of == ~0u) return bits;
  uint32_t found = 0;
  for (uint32_t i = 0; of; of &= of - 1, ++i) found |= (bits >> std::countr_zero(of) & 1) << i;
  return found;
}
uint32_t unpacked(uint32_t bits, uint32_t of) {
  if (of == ~0u || bits == 0) return bits;
  uint32_t found = 0;
  for (; of; of &= of - 1, bits >>= 1)
    if (bits & 1) found |= of & -of;
  return found;
}

}  // namespace

uint64_t Refinement::open_ranges() {
  const auto in_order = [](auto& of) {
    const auto before = [](const auto& a, const auto& b) { return a.element < b.element; };
    if (!std::is_sorted(of.begin(), of.end(), before)) std::sort(of.begin(), of.end(), before);
  };
  in_order(noted_);
  in_order(sums_);
  uint64_t most = 0;
  whole_ = true;
  each_chunk([&](const Small& small) {
    whole_ &= small.sums <= kFew;
    most += small.sums * words_below(small.chunk, 0);
  });
  whole_ &= most <= words_;
  if (whole_) return 0;
  each_chunk([&](const Small& small) {
    const size_t at = own_ranges_.size();
    own_ranges_.resize(at + small.range_words(call_), 0);
    uint32_t* const own = own_ranges_.data() + at;
    const double least = large(small.chunk);
    for (size_t k = small.noted; k < small.noted_end; ++k) {
      const Noted& noted = noted_[k];
      if (noted.x == 0 || std::abs(noted.x) >= least) continue;
      const uint64_t field = wide_ ? std::bit_cast<uint64_t>(noted.x) << 1 >> 53
                                   : uint64_t{std::bit_cast<uint32_t>(static_cast<float>(noted.x)) << 1 >> 24};
      set_exponent(call_, own, field);
      const uint32_t group = (noted.element - first_of(small.chunk)) / kGroup;
      if (marks_ || noted.zero()) own[small.groups_at(call_) + group / 32] |= 1u << (group % 32);
    }
    size_t i = 0;  // of small sums
    for (size_t k = small.begin; k < small.end; ++k) {
      const Word& word = sums_[k];
      const uint32_t count = static_cast<uint32_t>(std::popcount(word.small));
      if (word.large) set_window(own + small.large_at(call_), i, count, packed(word.large, word.small));
      i += count;
    }
  });
  ranges_.assign(own_ranges_.size(), 0);
  return (own_ranges_.size() + words_ - 1) / words_;
}

uint64_t Refinement::open_rest() {
  const uint32_t* ranges = whole_ ? nullptr : ranges_.data();
  const uint32_t* own = own_ranges_.data();
  elements_.reserve(noted_.size());
  each_chunk([&](const Small& small) {
    if (const uint32_t rest = rest_of(small.chunk, ranges); rest > 0) add_part(small, ranges, rest);
    if (!ranges) return;
    if (call_.checked) note_claims(small, own, ranges);
    own += small.range_words(call_);
    ranges += small.range_words(call_);
  });
  rest_.assign(own_rest_.size(), 0);
  const uint64_t packets = (own_rest_.size() + words_ - 1) / words_;
  claim_packets_ = (claims_.words().size() + words_ - 1) / words_;
  // All ranks hear whether the ranges were the same to them.
  if (call_.checked && !ranges_.empty() && packets + claim_packets_ == 0) claim_packets_ = 1;
  return claim_packets_ + packets;
}

void Refinement::note_claims(const Small& small, const uint32_t* own, const uint32_t* ranges) {
  for (size_t w = small.large_at(call_); w < small.range_words(call_); ++w)
    for (uint32_t left = ranges[w]; left; left &= left - 1) claims_.add(own[w] & left & -left);
}

// Words more that the refined elements of a chunk take: 0 if nothing was cut off, or no rank asks for any.
uint32_t Refinement::rest_of(uint32_t chunk, const uint32_t* ranges) const {
  if (!ranges) return words_below(chunk, 0);
  for (uint32_t word = 0; word < call_.exponent_words(); ++word)
    if (ranges[word]) {
      const int lowest = static_cast<int>(32 * word) + std::countr_zero(ranges[word]);
      return words_below(chunk, lowest << call_.cut_exponent_bits());
    }
  return 0;
}

// The sums of 0 in groups that some rank has asked for.
uint32_t Refinement::asked_of(const Small& small, const Word& word, const uint32_t* groups) const {
  uint32_t asked = 0;
  for (uint32_t left = word.zero; left; left &= left - 1) {
    const uint32_t group = (word.element + static_cast<uint32_t>(std::countr_zero(left)) - first_of(small.chunk)) / kGroup;
    if (groups[group / 32] >> (group % 32) & 1) asked |= left & -left;
  }
  return asked;
}

void Refinement::add_part(const Small& small, const uint32_t* ranges, uint32_t rest) {
  Part part{small.chunk, rest, 0, elements_.size(), own_rest_.size(), small.noted, small.noted_end};
  const uint32_t* const groups = ranges ? ranges + small.groups_at(call_) : nullptr;
  const uint32_t* const large = ranges ? ranges + small.large_at(call_) : nullptr;
  const bool asks = ranges && std::any_of(groups, large, [](uint32_t w) { return w != 0; });
  size_t i = 0;  // of small sums
  for (size_t k = small.begin; k < small.end; ++k) {
    const Word& word = sums_[k];
    uint32_t refined = word.small;
    if (ranges) {
      const uint32_t count = static_cast<uint32_t>(std::popcount(word.small));
      refined = (word.small & ~word.zero) | (asks ? asked_of(small, word, groups) : 0);
      refined &= ~unpacked(window(large, i, count), word.small);
      i += count;
    }
    for (; refined; refined &= refined - 1)
      elements_.push_back(word.element + static_cast<uint32_t>(std::countr_zero(refined)));
  }
  part.count = static_cast<uint32_t>(elements_.size() - part.first);
  if (part.count == 0) return;
  own_rest_.resize(part.at + size_t{part.rest} * part.count, 0);
  parts_.push_back(part);
  if (wide_) {
    write_rest(part, x64_);
  } else {
    write_rest(part, x32_);
  }
}

LimbGrid Refinement::grid_of(const Part& part) const {
  LimbGrid grid = sequence_.grids()[part.chunk].with(part.rest);
  if (grid.words == 2 && !marks_) grid.bits = 44 - (31 - limb_bits_);  // such sums are under 2^44, because their first words are small
  return grid;
}

// Calls f(i, noted) for what is noted of a part's elements.
template <typename F>
void Refinement::each_noted(const Part& part, F&& f) const {
  uint32_t i = 0;
  for (size_t k = part.noted; k < part.noted_end; ++k) {
    while (i < part.count && elements_[part.first + i] < noted_[k].element) ++i;
    if (i < part.count && elements_[part.first + i] == noted_[k].element) f(i, noted_[k]);
  }
}

// This rank's words below the first.
template <typename T>
void Refinement::write_rest(const Part& part, std::vector<T>& x) {
  x.assign(part.count, 0);
  each_noted(part, [&](uint32_t i, const Noted& noted) { x[i] = static_cast<T>(noted.x); });
  const LimbGrid& grid = sequence_.grids()[part.chunk];
  const LimbGrid all = grid.with(part.rest);
  uint32_t* to = own_rest_.data() + part.at;
  if constexpr (sizeof(T) == sizeof(double)) {
    write_limbs(kernels_.exact_limb_f64, x.data(), part.count, all, 0, part.rest, part.count, to);
  } else if (grid.limb_bits < 24) {
    write_limbs(kernels_.exact_limb_f32, x.data(), part.count, all, 0, part.rest, part.count, to);
  } else {
    left_.resize(part.count);
    kernels_.cut_off_f32(x.data(), part.count, scale_of(-grid.unit, 1.0f), scale_of(grid.unit, 1.0f), left_.data());
    write_limbs(kernels_.exact_limb_f32, left_.data(), part.count, all, 0, part.rest, part.count, to);
  }
}

// As store_words and load_words (plan.h), of words that are big-endian already.
bool Refinement::encode_rest(uint64_t packet, uint8_t* payload) const {
  if (packet < claim_packets_) {
    store_words(claims_.words(), packet, words_, payload);
    return true;
  }
  packet -= claim_packets_;
  uint32_t* const words = reinterpret_cast<uint32_t*>(payload);
  const uint64_t from = packet * words_, to = std::min<uint64_t>(from + words_, own_rest_.size());
  const uint32_t *first = own_rest_.data() + from, *last = own_rest_.data() + to;
  std::fill(std::copy(first, last, words), words + words_, 0u);
  return (call_.checked && call_.rank == 0) || std::any_of(first, last, [](uint32_t w) { return w != 0; });
}

void Refinement::decode_rest(uint64_t packet, const uint8_t* payload) {
  if (packet < claim_packets_) return load_words(claims_.sums(), packet, words_, payload);
  packet -= claim_packets_;
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(payload);
  const uint64_t from = packet * words_, to = std::min<uint64_t>(from + words_, rest_.size());
  if (words) std::copy_n(words, to - from, rest_.begin() + static_cast<std::ptrdiff_t>(from));
}

// All words of the sums of a part, from the lowest.
void Refinement::gather(const Part& part, std::vector<uint32_t>& planes) const {
  const uint32_t words = sequence_.grids()[part.chunk].words;
  const size_t rest = size_t{part.rest} * part.count;
  planes.assign(rest + size_t{words} * part.count, 0);
  std::copy_n(rest_.data() + part.at, rest, planes.data());
  each_noted(part, [&](uint32_t i, const Noted& noted) {
    for (uint32_t j = 0; j < words; ++j) planes[rest + j * part.count + i] = noted.sum[j];
  });
}

}  // namespace switchagg
