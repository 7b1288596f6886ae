// The parts of a stream that are of sums in limbs (limbs.h): docs/protocol.md, sections 4 to 7.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "switchagg/native/worker/scale.h"
#include "switchagg/native/worker/stream.h"

namespace switchagg {

namespace {

// Limbs of n elements, `words` of them from `limb` on, in planes of `stride` words.
template <typename K, typename T>
void write_limbs(K kernel, const T* x, uint64_t n, const LimbGrid& grid, uint32_t limb, uint32_t words, uint32_t stride, uint32_t* to) {
  for (uint32_t j = 0; j < words; ++j, to += stride)
    kernel(x, n, grid.shift + static_cast<int>(limb + j) * grid.limb_bits, grid.mask(), to);
}

}  // namespace

constexpr uint32_t kShort = 256;  // elements; longer pieces follow each other in memory

// Cuts the sequence into pieces, and these into packets.
void Stream::cut_limbs() {
  uint32_t at = 0;  // words of the packet
  const auto next_packet = [&] {
    if (at > 0) packet_ends_.push_back(pieces_.size());
    at = 0;
  };
  uint32_t c = 0;
  sequence_.each_part([&](uint64_t element, uint64_t count) {
    for (uint64_t to = element + count; element < to;) {
      while (sequence_.chunk(c) < element >> call_.chunk_shift()) ++c;
      uint64_t left = std::min(to, (sequence_.chunk(c) + 1) << call_.chunk_shift()) - element;
      const LimbGrid& grid = sequence_.grids()[c];
      const uint32_t words = grid.words;
      if (words > words_)  // an element of several packets, each with limbs of it alone
        for (; left > 0; --left, ++element)
          for (uint32_t limb = 0; limb < words; limb += words_) {
            next_packet();
            at = std::min(words_, words - limb);
            pieces_.push_back({element, 1, 0, at, limb, c});
            if (limb + at == words) next_packet();
          }
      if (words == 0) element += left;  // nothing is sent; finish() writes zeros
      while (words > 0 && left > 0) {
        if (words_ - at < words) next_packet();
        const uint32_t fit = static_cast<uint32_t>(std::min<uint64_t>(left, (words_ - at) / words));
        pieces_.push_back({element, fit, at, words, 0, c});
        at += fit * words;
        element += fit;
        left -= fit;
      }
    }
  });
  next_packet();
  packets_ = packet_ends_.size();
}

// Calls f(piece, grid) for the pieces of a packet. Prefetches those of `tensor`, if not null, because short ones are scattered.
template <typename F>
void Stream::each_limb_piece(uint64_t packet, const uint8_t* tensor, F&& f) const {
  const size_t from = packet > 0 ? packet_ends_[packet - 1] : 0, to = packet_ends_[packet];
  const uint64_t size = call_.element_bytes();
  const auto fetch = [&](size_t i) {
    if (tensor && i < pieces_.size() && pieces_[i].count < kShort) fetch_block(tensor + pieces_[i].element * size, pieces_[i].count * size);
  };
  for (size_t i = from; i < to; ++i) {
    fetch(i + kFetched);
    f(pieces_[i], sequence_.grids()[pieces_[i].chunk]);
  }
}

void Stream::find_groups(const Refinement& refinement) {
  first_groups_.reserve(sequence_.grids().size() + 1);
  size_t at = 0, kept = 0;
  for (uint32_t c = 0; c < sequence_.grids().size(); ++c) {
    first_groups_.push_back(groups_.size());
    refinement.each_group(c, [&](uint32_t g) {
      const uint64_t element = (sequence_.chunk(c) << call_.chunk_shift()) + uint64_t{g} * kGroup;
      if (element >= call_.count) return;
      const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(kGroup, call_.count - element));
      groups_.push_back({element, count, c, at, kept});
      at += count * sequence_.grids()[c].rest;
      kept += count * sequence_.grids()[c].words;
    });
  }
  first_groups_.push_back(groups_.size());
  own_rest_.resize(at);
  rest_.resize(at);
  kept_.resize(kept);
}

// Calls f(group, element, count) for the parts of marked groups among elements of one chunk.
template <typename F>
void Stream::each_group(uint32_t chunk, uint64_t element, uint64_t count, F&& f) const {
  if (groups_.empty()) return;
  for (size_t i = first_groups_[chunk]; i < first_groups_[chunk + 1]; ++i) {
    const Group& group = groups_[i];
    const uint64_t from = std::max(element, group.element), to = std::min(element + count, group.element + group.count);
    if (from < to) f(group, from, to - from);
  }
}

// The rest of elements of which x[0] is the first; of those that are in marked groups.
void Stream::encode_rest(uint32_t chunk, uint64_t element, uint32_t count, const void* x) {
  const LimbGrid& grid = sequence_.grids()[chunk];
  each_group(chunk, element, count, [&](const Group& group, uint64_t from, uint64_t n) {
    const LimbGrid all = grid.with(grid.rest);
    uint32_t* to = own_rest_.data() + group.at + (from - group.element);
    const auto limbs = [&](const auto* values, auto kernel) { write_limbs(kernel, values, n, all, 0, grid.rest, group.count, to); };
    if (call_.dtype == DType::f64) return limbs(static_cast<const double*>(x) + (from - element), kernels_.exact_limb_f64);
    const float* values = static_cast<const float*>(x) + (from - element);
    if (grid.limb_bits < 24) return limbs(values, kernels_.exact_limb_f32);
    float left[kGroup];
    const ScaleF up = scale_of(-grid.unit, 1.0f), down = scale_of(grid.unit, 1.0f);
    kernels_.cut_off_f32(values, n, up, down, left);
    limbs(left, kernels_.exact_limb_f32);
  });
}

// Rounds the sums of marked groups, of all words.
void Stream::finish_groups() {
  std::vector<uint32_t> planes;
  const uint64_t size = call_.element_bytes();
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (i + kFetched < groups_.size()) {
      const uint64_t next = groups_[i + kFetched].element;
      if (next >= call_.out_begin && next < call_.out_end) __builtin_prefetch(call_.out + (next - call_.out_begin) * size, 1);
    }
    const Group& group = groups_[i];
    const LimbGrid& grid = sequence_.grids()[group.chunk];
    const LimbGrid all = grid.with(grid.rest);
    const uint32_t rest = group.count * grid.rest, words = group.count * grid.words;
    planes.resize(rest + words);
    std::copy_n(rest_.data() + group.at, rest, planes.data());
    std::copy_n(kept_.data() + group.kept, words, planes.data() + rest);
    const uint64_t from = std::max(group.element, call_.out_begin), to = std::min(group.element + group.count, call_.out_end);
    each_block(call_, from, to, [&](uint64_t b, uint64_t at, uint64_t end) {
      if (sequence_.in_union(b)) round(all, at, static_cast<uint32_t>(end - at), planes.data() + (at - group.element), group.count);
    });
  }
}

bool Stream::encode_limbs(uint64_t packet, uint32_t* words) {
  // Calls f(element, count, own) for the parts of a piece that are non-zero here and for those that are not.
  const auto parts = [&](const Piece& piece, auto&& f) {
    if (sequence_.has_all()) return f(piece.element, piece.count, true);
    const uint64_t to = piece.element + piece.count;
    for (uint64_t element = piece.element, end; element < to; element = end) {
      const uint64_t b = element / call_.block;
      uint64_t next = b + 1;
      while (next * call_.block < to && sequence_.has(next) == sequence_.has(b)) ++next;
      end = std::min(next * call_.block, to);
      f(element, static_cast<uint32_t>(end - element), sequence_.has(b));
    }
  };
  bool any = false;
  each_limb_piece(packet, nullptr, [&](const Piece& piece, const LimbGrid&) {
    parts(piece, [&](uint64_t, uint32_t, bool own) { any |= own; });
  });
  uint32_t used = 0;
  each_limb_piece(packet, call_.in, [&](const Piece& piece, const LimbGrid& grid) {
    const ChunkRange& range = sequence_.ranges()[piece.chunk];
    parts(piece, [&](uint64_t element, uint32_t count, bool own) {
      uint32_t* to = words + piece.at + (element - piece.element);
      const auto limbs = [&](const auto* x, auto kernel) {
        write_limbs(kernel, x, count, grid, piece.limb, piece.words, piece.count, to);
      };
      if (own && call_.dtype == DType::f64) {
        const double* x = doubles(range, element, count);
        limbs(x, kernels_.exact_limb_f64);
        encode_rest(piece.chunk, element, count, x);
      } else if (own) {
        const float* x = widened(range, element, count);
        if (grid.words == 1 && (grid.limb_bits >= 24 || grid.rest == 0)) {  // no rounding exceeds the limb
          kernels_.quantize_f32_be(x, count, scale_of(-grid.unit, 1.0f), to);
        } else {
          limbs(x, kernels_.exact_limb_f32);
        }
        encode_rest(piece.chunk, element, count, x);
      } else if (any) {
        for (uint32_t j = 0; j < piece.words; ++j, to += piece.count) std::memset(to, 0, 4 * static_cast<size_t>(count));
      }
      if (piece.limb + piece.words < grid.words) return;  // the memory is still needed
      if (own) {
        forget(element, count);
      } else {
        remember(element, count);
      }
    });
    used = piece.at + piece.count * piece.words;
  });
  if (any) std::memset(words + used, 0, 4 * static_cast<size_t>(words_ - used));
  return any;
}

void Stream::decode_limbs(uint64_t packet, const uint32_t* words) {
  const uint8_t* out = call_.out - call_.element_bytes() * call_.out_begin;
  each_limb_piece(packet, out, [&](const Piece& piece, const LimbGrid& grid) {
    const uint64_t from = std::max(piece.element, call_.out_begin);
    const uint64_t to = std::min(piece.element + piece.count, call_.out_end);
    if (from >= to) return;
    if (piece.words < grid.words) {
      auto& [limbs, there] = parts_[from];
      limbs.resize(grid.words);
      if (words) std::copy_n(words, piece.words, limbs.begin() + piece.limb);
      there += piece.words;
      if (there < grid.words) return;
      round(grid, from, 1, limbs.data(), 1);
      parts_.erase(from);
    } else if (words) {
      round(grid, from, static_cast<uint32_t>(to - from), words + piece.at + (from - piece.element), piece.count);
      each_group(piece.chunk, from, to - from, [&](const Group& group, uint64_t element, uint64_t count) {
        for (uint32_t j = 0; j < grid.words; ++j)
          std::copy_n(words + piece.at + j * piece.count + (element - piece.element), count,
                      kept_.begin() + static_cast<std::ptrdiff_t>(group.kept + j * group.count + (element - group.element)));
      });
    } else {
      write_zeros(from, to - from);
    }
  });
}

// Writes `count` results of one grid, given all limbs of their sums in planes of `stride` words.
void Stream::round(const LimbGrid& grid, uint64_t element, uint32_t count, const uint32_t* words, size_t stride) {
  const uint32_t divisor = call_.op == ReduceOp::avg ? call_.workers : 1;
  const bool power = std::has_single_bit(divisor);
  const int unit = grid.unit - (power ? std::countr_zero(divisor) : 0), places = grid.limb_bits;
  const int bits = grid.bits + static_cast<int>(std::bit_width(call_.workers - 1));
  // Only the integer is rounded: a sum is a multiple of the smallest subnormal, also where the unit is smaller, and so is an
  // average, divided by a power of two, where its unit is not.
  const bool once = power && (divisor == 1 || unit >= (call_.dtype == DType::f64 ? -1074 : -149));
  uint8_t* out = call_.out + (element - call_.out_begin) * call_.element_bytes();
  if (call_.dtype == DType::f64) {
    double* x = reinterpret_cast<double*>(out);
    if (!once || grid.words > 3) return round_sums(words, stride, grid, count, divisor, x);
    const std::vector<uint32_t> zeros(grid.words < 3 ? count : 0);
    const auto plane = [&](uint32_t j) { return j < grid.words ? words + j * stride : zeros.data(); };
    kernels_.exact_triple_f64(plane(0), plane(1), plane(2), count, places, scale_of(unit, 1.0), x);
  } else if (call_.dtype == DType::f32) {
    float* x = reinterpret_cast<float*>(out);
    if (grid.words == 1 && once) return kernels_.dequantize_f32_be(words, count, scale_of(unit, 1.0f), x, nontemporal_);
    if (grid.words != 2 || (!once && bits > (power ? 53 : 45)))
      return round_sums(words, stride, grid, count, divisor, x);
    const double scale = std::ldexp(1.0, unit);
    kernels_.exact_pair_f32(words, words + stride, count, places, bits, power ? 1 : divisor, scale, x, nontemporal_);
  } else {
    const bool f16 = call_.dtype == DType::f16;
    if (grid.words == 1 && once) {
      kernels_.odd_f32_be(words, count, scale_of(unit, 1.0f), wide_.data());
      (f16 ? kernels_.narrow_f16 : kernels_.narrow_bf16)(wide_.data(), count, reinterpret_cast<uint16_t*>(out));
    } else if (f16) {
      round_sums(words, stride, grid, count, divisor, reinterpret_cast<Float16*>(out));
    } else {
      round_sums(words, stride, grid, count, divisor, reinterpret_cast<BFloat16*>(out));
    }
  }
}

// The union's elements in a chunk of which nothing was sent: all ranks have zeros, NaN or Inf there, or what only a memory
// will send.
void Stream::finish_zeros(uint64_t chunk) {
  const uint64_t end = std::min((chunk + 1) * call_.chunk(), call_.count);
  each_block(call_, chunk * call_.chunk(), end, [&](uint64_t b, uint64_t element, uint64_t to) {
    if (!sequence_.in_union(b)) return;
    if (sequence_.has(b)) {
      forget(element, to - element);
    } else {
      remember(element, to - element);
    }
    const uint64_t first = std::max(element, call_.out_begin), last = std::min(to, call_.out_end);
    if (first < last) write_zeros(first, last - first);
  });
}

// As store_words and load_words (plan.h), of words that are big-endian already.
bool Stream::take_rest(uint64_t packet, uint32_t* words) const {
  const uint64_t from = packet * words_, to = std::min<uint64_t>(from + words_, own_rest_.size());
  const auto first = own_rest_.begin() + static_cast<std::ptrdiff_t>(from), last = own_rest_.begin() + static_cast<std::ptrdiff_t>(to);
  std::fill(std::copy(first, last, words), words + words_, 0u);
  return std::any_of(first, last, [](uint32_t w) { return w != 0; });
}

void Stream::put_rest(uint64_t packet, const uint32_t* words) {
  const uint64_t from = packet * words_, to = std::min<uint64_t>(from + words_, rest_.size());
  if (words) std::copy_n(words, to - from, rest_.begin() + static_cast<std::ptrdiff_t>(from));
}

}  // namespace switchagg
