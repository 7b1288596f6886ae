// The parts of a stream that are of sums in limbs (limbs.h): docs/protocol.md, sections 4 to 7.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "switchagg/native/worker/scale.h"
#include "switchagg/native/worker/stream.h"

namespace switchagg {

constexpr uint32_t kShort = 256;  // elements; longer pieces follow each other in memory
constexpr uint32_t kLine = 32;    // elements, of two lines of cache

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

// Calls f(element, count, own) for the parts of a piece that are non-zero here and for those that are not.
template <typename F>
void Stream::each_own_part(const Piece& piece, F&& f) const {
  if (sequence_.has_all()) return f(piece.element, piece.count, true);
  const uint64_t to = piece.element + piece.count;
  for (uint64_t element = piece.element, end; element < to; element = end) {
    const uint64_t b = element / call_.block;
    uint64_t next = b + 1;
    while (next * call_.block < to && sequence_.has(next) == sequence_.has(b)) ++next;
    end = std::min(next * call_.block, to);
    f(element, static_cast<uint32_t>(end - element), sequence_.has(b));
  }
}

uint32_t Stream::used(uint64_t packet) const {
  const uint64_t apart = claim_packets_ + special_packets_;
  return no_op_ || call_.bits == 64 || packet < apart ? words_ : length(packet - apart);
}

// The words of a packet, of those behind claims and specials, in limbs or lanes of up to 32 bits.
uint32_t Stream::length(uint64_t packet) const {
  if (call_.in_limbs()) {
    const Piece& last = pieces_[packet_ends_[packet] - 1];
    return last.at + last.count * last.words;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(words_, sequence_.elements() - packet * lanes_per_packet_));
}

bool Stream::encode_limbs(uint64_t packet, uint32_t* words) {
  bool any = false;
  each_limb_piece(packet, nullptr, [&](const Piece& piece, const LimbGrid&) {
    each_own_part(piece, [&](uint64_t, uint32_t, bool own) { any |= own; });
  });
  each_limb_piece(packet, call_.in, [&](const Piece& piece, const LimbGrid& grid) {
    const ChunkRange& range = sequence_.ranges()[piece.chunk];
    each_own_part(piece, [&](uint64_t element, uint32_t count, bool own) {
      uint32_t* to = words + piece.at + (element - piece.element);
      const auto limbs = [&](const auto* x, auto kernel) {
        write_limbs(kernel, x, count, grid, piece.limb, piece.words, piece.count, to);
      };
      if (own && call_.dtype == DType::f64) {
        limbs(doubles(range, element, count), kernels_.exact_limb_f64);
      } else if (own) {
        const float* x = widened(range, element, count);
        if (grid.words == 1 && (grid.limb_bits >= 24 || !grid.cut)) {  // no rounding exceeds the limb
          kernels_.quantize_f32_be(x, count, scale_of(-grid.unit, 1.0f), to);
        } else {
          limbs(x, kernels_.exact_limb_f32);
        }
      } else if (any) {
        for (uint32_t j = 0; j < piece.words; ++j, to += piece.count) std::memset(to, 0, 4 * static_cast<size_t>(count));
      }
      if (refinement_ || piece.limb + piece.words < grid.words) return;  // the memory is still needed
      if (own) {
        forget(element, count);
      } else {
        remember(element, count);
      }
    });
  });
  if (any) std::fill(words + length(packet), words + words_, 0);
  return any;
}

// Of a bounded sum: notes what the refinement needs of a piece, before its results are written, perhaps over the input.
void Stream::note_small(const Piece& piece, const uint32_t* sums) {
  const ChunkRange& range = sequence_.ranges()[piece.chunk];
  each_own_part(piece, [&](uint64_t element, uint32_t count, bool own) {
    const auto note = [&](auto&& values) {
      const uint32_t* of_part = sums ? sums + (element - piece.element) : nullptr;
      refinement_->note(piece.chunk, element, count, of_part, piece.count, [&] { return own ? values() : nullptr; });
    };
    if ((sums || call_.has_marks()) && sequence_.grids()[piece.chunk].cut) {
      if (call_.dtype == DType::f64) {
        note([&] { return doubles(range, element, count); });
      } else {
        note([&] { return widened(range, element, count); });
      }
    }
    if (own) {
      forget(element, count);
    } else {
      remember(element, count);
    }
  });
}

void Stream::decode_limbs(uint64_t packet, const uint32_t* words) {
  const uint8_t* out = call_.out - call_.element_bytes() * call_.out_begin;
  each_limb_piece(packet, out, [&](const Piece& piece, const LimbGrid& grid) {
    const uint64_t from = std::max(piece.element, call_.out_begin);
    const uint64_t to = std::min(piece.element + piece.count, call_.out_end);
    const bool is_whole = to - from == piece.count;
    if (refinement_ && words && grid.cut && !call_.has_marks() && call_.dtype == DType::f32 && !call_.memory && once(grid) && is_whole)
      return decode_large(piece, grid, words + piece.at);
    if (refinement_) note_small(piece, words ? words + piece.at : nullptr);
    if (from >= to) return;
    uint8_t* result = call_.out + (from - call_.out_begin) * call_.element_bytes();
    if (piece.words < grid.words) {
      auto& [limbs, there] = parts_[from];
      limbs.resize(grid.words);
      if (words) std::copy_n(words, piece.words, limbs.begin() + piece.limb);
      there += piece.words;
      if (there < grid.words) return;
      round(grid, 1, limbs.data(), 1, result, nontemporal_);
      parts_.erase(from);
    } else if (words) {
      const uint32_t* sums = words + piece.at + (from - piece.element);
      round(grid, static_cast<uint32_t>(to - from), sums, piece.count, result, nontemporal_);
    } else {
      write_zeros(from, to - from);
    }
  });
}

// The usual case: most sums are not small. Where one is, it comes last, with some elements behind it, more of them each
// time.
void Stream::decode_large(const Piece& piece, const LimbGrid& grid, const uint32_t* sums) {
  const ScaleF scale = scale_of(result_unit(grid), 1.0f);
  float* const x = reinterpret_cast<float*>(call_.out) + (piece.element - call_.out_begin);
  std::array<Piece, 32> parts;
  size_t left = 0;
  for (uint32_t at = 0, some = kLine; at < piece.count; some *= 2) {
    at += static_cast<uint32_t>(
        kernels_.dequantize_large(sums + at, piece.count - at, refinement_->least(), scale, x + at, nontemporal_));
    if (at == piece.count) break;
    fetch_block(call_.in + (piece.element + at) * sizeof(float), 4 * kLine);
    Piece& part = parts[left++] = piece;
    part.element += at;
    part.count = std::min(some, piece.count - at);
    at += part.count;
  }
  for (size_t i = 0; i < left; ++i) {
    const size_t at = parts[i].element - piece.element;
    note_small(parts[i], sums + at);
    kernels_.dequantize_f32_be(sums + at, parts[i].count, scale, x + at, nontemporal_);
  }
}

// Writes the results of refined elements.
void Stream::finish_refined() {
  const uint64_t size = call_.element_bytes();
  const std::vector<uint32_t>& elements = refinement_->elements();
  const auto place = [&](uint32_t element) { return call_.out + (element - call_.out_begin) * size; };
  const auto wanted = [&](uint32_t element) { return element >= call_.out_begin && element < call_.out_end; };
  std::vector<uint8_t> results;
  refinement_->each_part([&](const LimbGrid& grid, size_t first, uint32_t count, const uint32_t* words) {
    results.resize(count * size);
    round(grid, count, words, count, results.data(), false);
    for (uint32_t i = 0; i < count; ++i) {
      if (const size_t next = first + i + kFetched; next < elements.size() && wanted(elements[next]))
        __builtin_prefetch(place(elements[next]), 1);
      if (wanted(elements[first + i])) std::memcpy(place(elements[first + i]), results.data() + i * size, size);
    }
  });
}

// The exponent of a result's unit, but for what remains of a divisor that is no power of two.
int Stream::result_unit(const LimbGrid& grid) const {
  return grid.unit - (std::has_single_bit(divisor()) ? std::countr_zero(divisor()) : 0);
}

// True if only the integer is rounded: a sum is a multiple of the smallest subnormal, also where the unit is smaller, and so
// is an average, divided by a power of two, where its unit is not.
bool Stream::once(const LimbGrid& grid) const {
  if (divisor() == 1) return true;
  return std::has_single_bit(divisor()) && result_unit(grid) >= (call_.dtype == DType::f64 ? -1074 : -149);
}

// Writes `count` results of one grid, given all limbs of their sums in planes of `stride` words.
void Stream::round(const LimbGrid& grid, uint32_t count, const uint32_t* words, size_t stride, uint8_t* out, bool nontemporal) {
  const uint32_t divisor = this->divisor();
  const bool power = std::has_single_bit(divisor), once = this->once(grid);
  const int unit = result_unit(grid), places = grid.limb_bits;
  const int bits = grid.bits + static_cast<int>(std::bit_width(call_.workers - 1));
  if (call_.dtype == DType::f64) {
    double* x = reinterpret_cast<double*>(out);
    if (!once || grid.words > 3) return round_sums(words, stride, grid, count, divisor, x);
    const std::vector<uint32_t> zeros(grid.words < 3 ? count : 0);
    const auto plane = [&](uint32_t j) { return j < grid.words ? words + j * stride : zeros.data(); };
    kernels_.exact_triple_f64(plane(0), plane(1), plane(2), count, places, scale_of(unit, 1.0), x);
  } else if (call_.dtype == DType::f32) {
    float* x = reinterpret_cast<float*>(out);
    if (grid.words == 1 && once) return kernels_.dequantize_f32_be(words, count, scale_of(unit, 1.0f), x, nontemporal);
    if (grid.words != 2 || (!once && bits > (power ? 53 : 45)))
      return round_sums(words, stride, grid, count, divisor, x);
    const double scale = std::ldexp(1.0, unit);
    kernels_.exact_pair_f32(words, words + stride, count, places, bits, power ? 1 : divisor, scale, x, nontemporal);
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

}  // namespace switchagg
