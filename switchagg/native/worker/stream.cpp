#include "switchagg/native/worker/stream.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "switchagg/native/shared/kernel_choice.h"
#include "switchagg/native/shared/slot_kernels.h"
#include "switchagg/native/worker/scale.h"

namespace switchagg {

const LaneKernels& choose_lane_kernels() {
  static const LaneKernels& best = chosen_of<LaneKernels>(KERNEL_SETS(lane_kernels));
  return best;
}

namespace {

bool bit(const uint32_t* bits, uint64_t i) { return (bits[i >> 5] >> (i & 31)) & 1; }

uint32_t dither_key(uint32_t call_number, uint32_t rank) {
  uint32_t k = call_number * 0x9E3779B1u ^ (rank + 1) * 0x7FEB352Du;
  k ^= k >> 15;
  k *= 0x846CA68Bu;
  return k ^ k >> 16;
}

}  // namespace

Stream::Stream(const Call& call, const Plan* plan, const Sequence& sequence, const Marks* marks, uint32_t words)
    : call_(call), kernels_(choose_lane_kernels()), words_(words), sequence_(sequence) {
  lanes_per_packet_ = call.in_limbs() ? words : call.bits == 64 ? words / 3 : words * (32 / call.bits);
  headroom_ = std::bit_width(call.workers - 1) + (call.workers >= 256);
  if (narrow()) {
    top_ = static_cast<int32_t>(((1u << (call.bits - 1)) - 1) / call.workers);
    key_ = dither_key(call.call_number, call.rank);
  }
  top_exponent_ = call.dtype == DType::f64 ? 2046 : call.dtype == DType::f16 ? 142 : 254;
  no_op_ = plan == nullptr;
  if (!no_op_) {
    note_specials();
    negative_zero_ = plan->negative_zero();
  }
  if (call.union_out && sequence.union_bitmap()) std::copy_n(sequence.union_bitmap(), (call.blocks() + 31) / 32, call.union_out);
  nontemporal_ = call.nontemporal && 2 * sequence.union_blocks() >= call.blocks();
  packets_ = (sequence.elements() + lanes_per_packet_ - 1) / lanes_per_packet_;
  if (call.in_limbs()) {
    cut_limbs();
    if (call.bits == kBounded) refinement_.emplace(call, sequence, marks, words);
  } else if (narrow()) {
    sums_.resize(words);
    q_.resize(call.chunk());
  } else if (call.dtype != DType::f32 && call.dtype != DType::raw) {
    q_.resize(words);
  }
  if (call.checked && !no_op_) note_claims();
  if (call.bits == 64) q64_.resize(lanes_per_packet_);
  if (call.dtype == DType::f16 || call.dtype == DType::bf16 || call.memory)
    wide_.resize(narrow() || call.in_limbs() ? call.chunk() : words);
}

// The first and the last element of a packet, of those behind claims and specials.
std::pair<uint64_t, uint64_t> Stream::extent(uint64_t packet) const {
  if (call_.in_limbs()) {
    const Piece& end = pieces_[packet_ends_[packet] - 1];
    return {pieces_[packet > 0 ? packet_ends_[packet - 1] : 0].element, end.element + end.count - 1};
  }
  const uint64_t from = packet * lanes_per_packet_;
  const auto element = [&](uint64_t k) {
    return sequence_.whole() ? k : uint64_t{sequence_.blocks()[k / call_.block]} * call_.block + k % call_.block;
  };
  return {element(from), element(std::min<uint64_t>(from + lanes_per_packet_, sequence_.elements()) - 1)};
}

std::optional<uint32_t> Stream::owner(uint64_t packet) const {
  if (!call_.owned() || packet < claim_packets_) return std::nullopt;
  const auto [first, last] = extent(packet - claim_packets_);
  const uint32_t owner = call_.owner(first);
  return owner == call_.owner(last) ? std::optional(owner) : std::nullopt;
}

uint16_t Stream::reader(uint64_t packet) const {
  if (!call_.directed || packet < special_packets_) return 0;
  const auto [first, last] = extent(packet - special_packets_);
  const uint64_t part = (call_.before + first) / call_.part;
  return part == (call_.before + last) / call_.part ? static_cast<uint16_t>(call_.reader + part + 1) : uint16_t{0};
}

void Stream::runs_of(uint64_t packet, bool by_owner) {
  runs_.clear();
  const uint64_t from = packet * lanes_per_packet_;
  uint64_t left = std::min<uint64_t>(lanes_per_packet_, sequence_.elements() - from);
  if (sequence_.whole() && (!by_owner || sequence_.has_all())) {
    runs_.push_back({from, static_cast<uint32_t>(left), 0, true});
    return;
  }
  const uint32_t block = call_.block;
  uint64_t k = from / block;
  uint64_t offset = from % block;
  uint32_t at = 0;
  while (left) {
    const uint64_t b = sequence_.whole() ? k : sequence_.blocks()[k];
    const uint64_t element = b * block + offset;
    const uint32_t count =
        static_cast<uint32_t>(std::min<uint64_t>({block - offset, left, call_.count - element}));
    const bool own = !by_owner || sequence_.has(b);
    if (!runs_.empty() && runs_.back().own == own && runs_.back().element + runs_.back().count == element) {
      runs_.back().count += count;
    } else {
      runs_.push_back({element, count, at, own});
    }
    at += count;
    left -= count;
    offset = 0;
    ++k;
  }
}

// Calls f(run) for the packet's runs. Prefetches them, because short ones are scattered in `tensor`.
template <typename F>
void Stream::each_run(const uint8_t* tensor, F&& f) const {
  const uint64_t size = call_.element_bytes();
  const size_t count = tensor ? runs_.size() : 0;
  const auto fetch = [&](const Run& r) { fetch_block(tensor + r.element * size, r.count * size); };
  for (size_t i = 0; i < std::min(kFetched, count); ++i) fetch(runs_[i]);
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (i + kFetched < count) fetch(runs_[i + kFetched]);
    f(runs_[i]);
  }
}

template <typename F>
void Stream::each_chunk(const Run& run, F&& f) const {
  const uint32_t shift = call_.chunk_shift();
  uint64_t element = run.element;
  uint32_t at = run.at, left = run.count;
  while (left) {
    const uint64_t c = element >> shift;
    const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(left, ((c + 1) << shift) - element));
    f(element, count, at, sequence_.ranges()[c]);
    element += count;
    at += count;
    left -= count;
  }
}

// The same for narrow lanes: calls f(element, count, place, shift, range) for each piece of a run that is in one chunk
// and one lane of the packet's words from `place` on.
template <typename F>
void Stream::each_piece(const Run& run, F&& f) const {
  each_chunk(run, [&](uint64_t element, uint32_t count, uint32_t at, const ChunkRange& range) {
    while (count) {
      const uint32_t lane = at / words_, place = at % words_, n = std::min(count, words_ - place);
      f(element, n, place, static_cast<int>(lane * call_.bits), range);
      element += n;
      at += n;
      count -= n;
    }
  });
}

namespace {

// The exponent E of docs/protocol.md: |x| < 2^(E+1).
template <typename T>
int unbiased(int e) {
  return (e ? e : 1) - kBias<T>;
}

}  // namespace

template <typename T>
Scale<T> Stream::up(int exponent) const {
  const int e = unbiased<T>(exponent);
  if (narrow()) return scale_of<T>(15 - e, static_cast<T>(top_));  // 2^16 times a lane
  const int64_t most = (int64_t{1} << (31 - headroom_)) - 1;  // where quantize_f64 clamps
  return scale_of<T>(places() - e, sizeof(T) == sizeof(double) && call_.bits == 32 ? static_cast<T>(most) : T{1});
}

template <typename T>
Scale<T> Stream::down(int exponent) const {
  const int e = unbiased<T>(exponent);
  const double ranks = call_.op == ReduceOp::avg ? call_.workers : 1;
  if (narrow()) return scale_of<T>(e + 1, static_cast<T>(1.0 / (top_ * ranks)));
  return scale_of<T>(e - places(), static_cast<T>(1.0 / ranks));
}

// The value of one unit of a narrow lane, before any averaging.
ScaleF Stream::carried(int exponent) const { return scale_of(unbiased<float>(exponent) + 1, static_cast<float>(1.0 / top_)); }

bool Stream::weighs(uint64_t packet) const {
  return packet >= claim_packets_ + special_packets_ && call_.dtype == DType::f32 && call_.bits == 32 && call_.out_begin == 0 &&
         call_.out_end >= call_.count;
}

bool Stream::encode(uint64_t packet, uint8_t* payload, WeighedPacket* weighed) {
  if (no_op_) return true;
  uint32_t* words = reinterpret_cast<uint32_t*>(payload);
  if (packet < claim_packets_) {
    store_words(claims_.words(), packet, words_, payload);
    return true;
  }
  packet -= claim_packets_;
  if (packet < special_packets_) return store_words(own_specials_, packet, words_, payload) || (call_.checked && call_.rank == 0);
  packet -= special_packets_;
  if (call_.in_limbs()) return encode_limbs(packet, words);
  runs_of(packet, call_.sparse);
  if (!std::any_of(runs_.begin(), runs_.end(), [](const Run& r) { return r.own; })) {
    for (const Run& r : runs_) remember(r.element, r.count);
    return false;
  }

  if (call_.dtype == DType::raw) {  // bytes move as they lie in memory
    std::memset(payload, 0, 4 * static_cast<size_t>(words_));
    bool any = call_.checked && call_.sparse;
    for (const Run& r : runs_) {
      const uint64_t from = std::max(r.element, call_.in_begin);
      const uint64_t to = std::min(r.element + r.count, call_.in_end);
      if (!r.own || from >= to) continue;
      copy_words(words + r.at + (from - r.element), call_.in + 4 * (from - call_.in_begin), to - from);
      any = true;
    }
    return any;
  }
  if (call_.dtype == DType::f32 && call_.bits == 32) {  // the usual case, in one pass
    const float* x = reinterpret_cast<const float*>(call_.in);
    each_run(call_.in, [&](const Run& r) {
      if (!r.own) {
        std::memset(words + r.at, 0, 4 * static_cast<size_t>(r.count));
        return remember(r.element, r.count);
      }
      each_chunk(r, [&](uint64_t element, uint32_t count, uint32_t at, const ChunkRange& range) {
        if (range.highest == kNoExponent) {
          std::memset(words + at, 0, 4 * static_cast<size_t>(count));
        } else {
          const float* from = call_.memory || range.special ? widened(range, element, count) : x + element;
          const ScaleF s = up<float>(range.highest);
          if (weighed) {
            weighed->sum += kernels_.quantize_weighted(from, count, s, words + at, weighed->weights + at);
          } else {
            kernels_.quantize_f32_be(from, count, s, words + at);
          }
        }
        forget(element, count);
      });
    });
    std::fill(words + length(packet), words + words_, 0);
    return true;
  }
  if (narrow()) {
    encode_narrow(words);
  } else {
    encode_lanes(payload);
  }
  return true;
}

// The usual case of narrow lanes: a packet whose lanes are all full of neighbours, as they are. Calls f(first element of the first
// lane, place, n, scales of the lanes) for the words from `place` on whose elements are of one chunk in each lane. False, without a
// call: another case.
template <typename F>
bool Stream::each_full(Scale<float> (Stream::*scale)(int) const, F&& f) {
  if (call_.dtype != DType::f32 || call_.memory || runs_.size() != 1 || !runs_[0].own || runs_[0].count < lanes_per_packet_) return false;
  const uint64_t first = runs_[0].element, each = call_.chunk(), chunk = first / each;
  scales_.clear();
  for (uint64_t c = chunk; c <= (first + lanes_per_packet_ - 1) / each; ++c) {
    const ChunkRange& range = sequence_.ranges()[c];
    const ScaleF s = (this->*scale)(range.highest);
    if (range.special || s.f2 != 1.0f) return false;  // nor of zeros alone, nor of a chunk with the largest exponent
    scales_.push_back(s.f1);
  }
  float scales[4];
  for (uint32_t place = 0, n; place < words_; place += n) {
    n = words_ - place;
    for (uint32_t lane = 0; lane < 32u / call_.bits; ++lane) {
      const uint64_t element = first + lane * uint64_t{words_} + place;
      scales[lane] = scales_[element / each - chunk];
      n = std::min(n, static_cast<uint32_t>(each - element % each));
    }
    f(first + place, place, n, scales);
  }
  return true;
}

void Stream::encode_narrow(uint32_t* words) {
  const auto dither_words = call_.bits == 16 ? kernels_.dither_words16 : kernels_.dither_words8;
  if (each_full(&Stream::up<float>, [&](uint64_t element, uint32_t place, uint32_t n, const float* scales) {
        const uint32_t index = call_.first_element + static_cast<uint32_t>(element);
        dither_words(input(element), words_, n, scales, key_, index, fetched_, words + place);
      }))
    return;
  std::fill(sums_.begin(), sums_.end(), 0);
  each_run(call_.in, [&](const Run& r) {
    if (!r.own) return remember(r.element, r.count);
    each_piece(r, [&](uint64_t element, uint32_t count, uint32_t place, int shift, const ChunkRange& range) {
      const int exponent = range.highest;
      if (exponent == kNoExponent) return forget(element, count);
      const uint32_t index = call_.first_element + static_cast<uint32_t>(element);
      uint32_t* const sums = sums_.data() + place;
      if (call_.dtype == DType::f64) {
        const double* x = doubles(range, element, count);
        kernels_.dither_f64(x, count, up<double>(exponent), key_, index, q_.data());
        return kernels_.add_lane(q_.data(), count, shift, sums);
      }
      const float* x = widened(range, element, count);
      const ScaleF s = up<float>(exponent);
      if (!call_.memory) return kernels_.dither_lane(x, count, s, key_, index, shift, sums);
      kernels_.dither_f32(x, count, s, key_, index, q_.data());
      kernels_.add_lane(q_.data(), count, shift, sums);
      float* const left = call_.memory + element;
      kernels_.dequantize_f32(q_.data(), count, carried(exponent), left);
      if (exponent >= 254)  // a lane at its top stands for 2^128
        for (uint32_t i = 0; i < count; ++i) left[i] = std::clamp(left[i], -FLT_MAX, FLT_MAX);
      kernels_.subtract_f32(x, count, left);
    });
  });
  kernels_.pack32(reinterpret_cast<const int32_t*>(sums_.data()), words_, words);
}

template <typename T>
const T* Stream::finite(const ChunkRange& range, const T* x, uint32_t count, std::vector<T>& copy) const {
  if (!range.special) return x;
  copy.resize(std::max<size_t>(copy.size(), count));
  for (uint32_t i = 0; i < count; ++i) copy[i] = std::isfinite(x[i]) ? x[i] : T{0};
  return copy.data();
}

// Elements as float32: of the input itself, or in wide_ or finite_.
const float* Stream::widened(const ChunkRange& range, uint64_t element, uint32_t count) {
  const float* x = reinterpret_cast<const float*>(call_.in) + element;
  if (call_.memory) {
    call_.add_memory(kernels_, element, count, wide_.data());
    x = wide_.data();
  } else if (call_.dtype != DType::f32) {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(call_.in) + element;
    (call_.dtype == DType::f16 ? kernels_.widen_f16 : kernels_.widen_bf16)(half, count, wide_.data());
    x = wide_.data();
  }
  return finite(range, x, count, finite_);
}

const double* Stream::doubles(const ChunkRange& range, uint64_t element, uint32_t count) {
  return finite(range, reinterpret_cast<const double*>(call_.in) + element, count, finite64_);
}

void Stream::encode_lanes(uint8_t* payload) {
  uint32_t* words = reinterpret_cast<uint32_t*>(payload);
  const bool wide = call_.bits == 64;
  uint32_t end = 0;
  each_run(call_.in, [&](const Run& r) {
    end = r.at + r.count;
    const auto zero = [&](uint32_t at, uint32_t count) {
      if (wide) {
        std::fill_n(q64_.begin() + at, count, 0);
      } else {
        std::fill_n(q_.begin() + at, count, 0);
      }
    };
    if (!r.own) {
      zero(r.at, r.count);
      return remember(r.element, r.count);
    }
    if (call_.dtype == DType::i32) {
      const int32_t* x = reinterpret_cast<const int32_t*>(call_.in) + r.element;
      if (wide) {
        std::copy_n(x, r.count, q64_.begin() + r.at);
      } else {
        copy_words(q_.data() + r.at, x, r.count);
      }
      return;
    }
    if (call_.dtype == DType::i64) {
      copy_words(q64_.data() + r.at, call_.in + 8 * r.element, size_t{2} * r.count);
      return;
    }
    each_chunk(r, [&](uint64_t element, uint32_t count, uint32_t at, const ChunkRange& range) {
      if (range.highest == kNoExponent) {
        forget(element, count);
        return zero(at, count);
      }
      if (call_.dtype == DType::f64) {
        const double* x = doubles(range, element, count);
        const ScaleD s = up<double>(range.highest);
        if (wide) {
          kernels_.quantize_f64_limbs(x, count, s, q64_.data() + at);
        } else {
          kernels_.quantize_f64(x, count, s, q_.data() + at);
        }
        return;
      }
      kernels_.quantize_f32(widened(range, element, count), count, up<float>(range.highest), q_.data() + at);
      forget(element, count);
    });
  });
  if (wide) {
    std::fill(q64_.begin() + end, q64_.end(), 0);
    kernels_.pack_limbs(q64_.data(), lanes_per_packet_, words);
    std::memset(words + 3 * lanes_per_packet_, 0, 4 * static_cast<size_t>(words_ - 3 * lanes_per_packet_));
    return;
  }
  std::fill(q_.begin() + end, q_.end(), 0);
  kernels_.pack32(q_.data(), words_, words);
}

void Stream::decode(uint64_t packet, const uint8_t* payload, WeighedPacket* weighed) {
  if (no_op_) return;
  if (packet < claim_packets_) return load_words(claims_.sums(), packet, words_, payload);
  packet -= claim_packets_;
  if (packet < special_packets_) return load_words(specials_, packet, words_, payload);
  packet -= special_packets_;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(payload);
  if (call_.in_limbs()) return decode_limbs(packet, words);
  runs_of(packet, false);
  // Keep the elements that the caller wants.
  if (call_.out_begin > 0 || call_.out_end < call_.count) {
    size_t kept = 0;
    for (Run r : runs_) {
      const uint64_t from = std::max(r.element, call_.out_begin);
      const uint64_t to = std::min(r.element + r.count, call_.out_end);
      if (from >= to) continue;
      r.at += static_cast<uint32_t>(from - r.element);
      r.element = from;
      r.count = static_cast<uint32_t>(to - from);
      runs_[kept++] = r;
    }
    runs_.resize(kept);
    if (runs_.empty()) return;
  }
  if (!payload) {
    for (const Run& r : runs_) write_zeros(r.element, r.count);
    return;
  }
  if (call_.dtype == DType::raw) {
    for (const Run& r : runs_) copy_words(call_.out + 4 * (r.element - call_.out_begin), words + r.at, r.count);
    return;
  }
  if (call_.dtype == DType::f32 && call_.bits == 32) {
    float* x = reinterpret_cast<float*>(call_.out);
    const auto weigh = [&](uint32_t at, uint32_t count) {
      if (weighed) weighed->sum += kernels_.weighted_sum_be(words + at, weighed->weights + at, count);
    };
    uint32_t end = 0;
    each_run(call_.out - call_.element_bytes() * call_.out_begin, [&](const Run& r) {
      end = r.at + r.count;
      each_chunk(r, [&](uint64_t element, uint32_t count, uint32_t at, const ChunkRange& range) {
        const int exponent = range.highest;
        if (exponent == kNoExponent) {
          weigh(at, count);
          return write_zeros(element, count);
        }
        const ScaleF s = down<float>(exponent);
        float* const to = x + (element - call_.out_begin);
        if (weighed) {
          weighed->sum += kernels_.dequantize_weighted(words + at, count, s, to, nontemporal_, weighed->weights + at);
        } else {
          kernels_.dequantize_f32_be(words + at, count, s, to, nontemporal_);
        }
        if (exponent >= top_exponent_) saturate(element - call_.out_begin, count, nullptr);
      });
    });
    weigh(end, words_ - end);
    return;
  }
  if (narrow()) {
    decode_narrow(words);
  } else {
    decode_lanes(payload);
  }
}

void Stream::decode_narrow(const uint32_t* words) {
  // All lanes at once are written through the cache alone.
  const auto dequantize_words = call_.bits == 16 ? kernels_.dequantize_words16 : kernels_.dequantize_words8;
  if (!nontemporal_ && each_full(&Stream::down<float>, [&](uint64_t element, uint32_t place, uint32_t n, const float* scales) {
        dequantize_words(words + place, n, scales, reinterpret_cast<float*>(call_.out) + (element - call_.out_begin), words_);
      }))
    return;
  const auto unpack = call_.bits == 16 ? kernels_.unpack_lane16 : kernels_.unpack_lane8;
  const auto dequantize = call_.bits == 16 ? kernels_.dequantize_lane16 : kernels_.dequantize_lane8;
  each_run(call_.out - call_.element_bytes() * call_.out_begin, [&](const Run& r) {
    each_piece(r, [&](uint64_t element, uint32_t count, uint32_t place, int shift, const ChunkRange& range) {
      const int exponent = range.highest;
      if (exponent == kNoExponent) return write_zeros(element, count);
      const uint64_t to = element - call_.out_begin;
      const bool at_top = exponent >= top_exponent_;
      if (at_top || call_.dtype == DType::f64) unpack(words + place, count, shift, q_.data());
      if (call_.dtype == DType::f64) {
        kernels_.dequantize_f64(q_.data(), count, down<double>(exponent), reinterpret_cast<double*>(call_.out) + to);
      } else if (call_.dtype == DType::f32) {
        float* x = reinterpret_cast<float*>(call_.out) + to;
        dequantize(words + place, count, shift, down<float>(exponent), x, nontemporal_);
      } else {
        dequantize(words + place, count, shift, down<float>(exponent), wide_.data(), false);
        uint16_t* half = reinterpret_cast<uint16_t*>(call_.out) + to;
        (call_.dtype == DType::f16 ? kernels_.narrow_f16 : kernels_.narrow_bf16)(wide_.data(), count, half);
      }
      if (at_top) saturate(to, count, q_.data());
    });
  });
}

void Stream::decode_lanes(const uint8_t* payload) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(payload);
  const bool wide = call_.bits == 64;
  if (wide) {
    kernels_.unpack_limbs(words, lanes_per_packet_, q64_.data());
  } else {
    kernels_.unpack32(words, words_, q_.data());
  }
  each_run(call_.out - call_.element_bytes() * call_.out_begin, [&](const Run& r) {
    const uint64_t to = r.element - call_.out_begin;
    if (call_.dtype == DType::i32) {
      int32_t* x = reinterpret_cast<int32_t*>(call_.out) + to;
      if (wide) {
        std::transform(q64_.begin() + r.at, q64_.begin() + r.at + r.count, x, [](int64_t q) { return static_cast<int32_t>(q); });
      } else {
        copy_words(x, q_.data() + r.at, r.count);
      }
      return;
    }
    if (call_.dtype == DType::i64) {
      copy_words(call_.out + 8 * to, q64_.data() + r.at, size_t{2} * r.count);
      return;
    }
    each_chunk(r, [&](uint64_t element, uint32_t count, uint32_t at, const ChunkRange& range) {
      const int exponent = range.highest;
      if (exponent == kNoExponent) return write_zeros(element, count);
      const uint64_t place = element - call_.out_begin;
      if (call_.dtype == DType::f64) {
        double* x = reinterpret_cast<double*>(call_.out) + place;
        if (wide) {
          kernels_.dequantize_f64_limbs(q64_.data() + at, count, down<double>(exponent), x);
        } else {
          kernels_.dequantize_f64(q_.data() + at, count, down<double>(exponent), x);
        }
      } else {
        kernels_.dequantize_f32(q_.data() + at, count, down<float>(exponent), wide_.data());
        uint16_t* half = reinterpret_cast<uint16_t*>(call_.out) + place;
        (call_.dtype == DType::f16 ? kernels_.narrow_f16 : kernels_.narrow_bf16)(wide_.data(), count, half);
      }
      if (exponent >= top_exponent_) saturate(place, count, nullptr);
    });
  });
}

void Stream::put(uint64_t from, uint64_t count, float* to) {
  each_block(call_, from, from + count, [&](uint64_t block, uint64_t at, uint64_t end) {
    if (!sequence_.has(block)) {
      std::memset(to + (at - from), 0, 4 * (end - at));
      return remember(at, end - at);
    }
    if (call_.memory) {
      call_.add_memory(kernels_, at, end - at, to + (at - from));
    } else {
      copy_words(to + (at - from), input(at), end - at);
    }
    forget(at, end - at);
  });
}

void Stream::add(uint64_t from, uint64_t count, std::span<const float*> ranks, float* to, bool past) {
  float* const out = reinterpret_cast<float*>(call_.out);
  each_chunk({from, static_cast<uint32_t>(count), 0, true}, [&](uint64_t element, uint32_t n, uint32_t at, const ChunkRange& range) {
    if (range.highest == kNoExponent) {
      std::memset(to + at, 0, 4 * size_t{n});
      write_zeros(element, n);
    } else {
      float* const cached = past ? out + element : to + at;
      float* const other = past ? to + at : out + element;
      kernels_.sum_f32(ranks.data(), ranks.size(), n, up<float>(range.highest), down<float>(range.highest), cached, other, past || nontemporal_);
      if (range.highest >= top_exponent_) {
        saturate(element, n, nullptr);
        if (to + at != out + element) copy_words(to + at, out + element, n);
      }
    }
    for (const float*& each : ranks) each += n;
  });
}

void Stream::take(uint64_t from, uint64_t count, const float* sum) {
  float* const out = reinterpret_cast<float*>(call_.out) + from;
  nontemporal_ ? kernels_.copy_nontemporal(sum, count, out) : copy_words(out, sum, count);
}

// Calls f(pointer to the output from `place` on as unsigned integers, the bits of infinity).
template <typename F>
void Stream::out_bits(uint64_t place, F&& f) const {
  if (call_.dtype == DType::f64) return f(reinterpret_cast<uint64_t*>(call_.out) + place, uint64_t{0x7ff0000000000000});
  if (call_.dtype == DType::f32) return f(reinterpret_cast<uint32_t*>(call_.out) + place, uint32_t{0x7f800000});
  f(reinterpret_cast<uint16_t*>(call_.out) + place, static_cast<uint16_t>(call_.dtype == DType::f16 ? 0x7c00 : 0x7f80));
}

// In a chunk with the type's largest exponent, rounding can turn a finite average, or the finite value of one rank, into
// an infinity: it becomes the largest finite value. Such chunks are rare.
void Stream::saturate(uint64_t place, uint32_t count, const int32_t* narrow_lanes) {
  const auto allowed = [&](uint32_t i) {
    return call_.op == ReduceOp::avg || (narrow_lanes && std::abs(static_cast<int64_t>(narrow_lanes[i])) <= top_);
  };
  out_bits(place, [&](auto* x, auto infinity) {
    using Bits = decltype(infinity);
    constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    for (uint32_t i = 0; i < count; ++i)
      if (static_cast<Bits>(x[i] & static_cast<Bits>(~sign)) == infinity && allowed(i))
        x[i] = static_cast<Bits>((x[i] & sign) | (infinity - 1));  // the largest finite value
  });
}

void Stream::write_zeros(uint64_t element, uint64_t count) {
  const uint32_t size = call_.element_bytes();
  std::memset(call_.out + (element - call_.out_begin) * size, 0, count * size);
}

// With a memory: it keeps the input plus memory of elements that were not sent, and forget() clears it for others.
void Stream::remember(uint64_t element, uint64_t count) {
  if (!call_.memory) return;
  while (count) {
    const size_t n = std::min<uint64_t>(count, wide_.size());
    call_.add_memory(kernels_, element, n, wide_.data());
    copy_words(call_.memory + element, wide_.data(), n);
    element += n;
    count -= n;
  }
}

void Stream::forget(uint64_t element, uint64_t count) {
  if (call_.memory) std::memset(call_.memory + element, 0, 4 * count);
}

// A packet at least where the stream would have none, or its other packets have no check words of all ranks: all hear then whether
// the plan was the same to them.
void Stream::note_claims() {
  for (size_t c = 0; c < sequence_.ranges().size(); ++c)
    if (const int highest = sequence_.ranges()[c].highest; highest != kNoExponent)
      claims_.add(sequence_.own_ranges()[c].highest == highest);
  claim_packets_ = (claims_.words().size() + words_ - 1) / words_;
  const bool bare = packets() == 0 || !call_.adds() || call_.owned();
  if (bare && claims_.empty() && call_.count > 0) claim_packets_ = 1;
}

size_t Stream::special_words() const { return call_.checked ? call_.chunk() : call_.chunk() / 16; }

// The chunks that hold NaN or Inf, and this rank's bits of their elements.
void Stream::note_specials() {
  for (uint64_t c = 0; c < sequence_.ranges().size(); ++c)
    if (sequence_.ranges()[c].special) special_.push_back(c);
  if (special_.empty()) return;
  const uint64_t half = call_.chunk() / 32;
  own_specials_.assign(special_.size() * special_words(), 0);
  specials_ = own_specials_;
  special_packets_ = (specials_.size() + words_ - 1) / words_;
  uint32_t* bits = own_specials_.data();
  for (const uint64_t c : special_) {
    const uint64_t from = sequence_.chunk(c) * call_.chunk(), count = std::min(call_.chunk(), call_.count - from);
    for (uint64_t i = 0; i < count; ++i) {
      if (call_.mask && !bit(call_.mask, (from + i) / call_.block)) continue;
      const double x = value(from + i);
      if (std::isfinite(x)) continue;
      if (call_.checked) {
        bits[i] = (!(x < 0) ? 1u : 0) | (!(x > 0) ? 1u << 16 : 0);
        continue;
      }
      const uint32_t mine = 1u << (i % 32);
      if (!(x < 0)) bits[i / 32] |= mine;
      if (!(x > 0)) bits[half + i / 32] |= mine;
    }
    bits += special_words();
  }
}

// An element of the input, with its memory.
double Stream::value(uint64_t element) const {
  if (call_.dtype == DType::f64) return reinterpret_cast<const double*>(call_.in)[element];
  float x;
  if (call_.memory) {
    call_.add_memory(kernels_, element, 1, &x);
  } else if (call_.dtype == DType::f32) {
    x = reinterpret_cast<const float*>(call_.in)[element];
  } else {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(call_.in) + element;
    (call_.dtype == DType::f16 ? kernels_.widen_f16 : kernels_.widen_bf16)(half, 1, &x);
  }
  return x;
}

// Writes NaN and Inf over the results of the elements that were such on some rank.
void Stream::write_specials() {
  const uint64_t half = call_.chunk() / 32;
  const uint32_t* bits = specials_.data();
  for (const uint64_t c : special_) {
    const uint64_t from = sequence_.chunk(c) * call_.chunk();
    const uint64_t to = std::min({from + call_.chunk(), call_.count, call_.out_end});
    for (uint64_t e = std::max(from, call_.out_begin); e < to; ++e) {
      const uint64_t i = e - from;
      const bool positive = call_.checked ? (bits[i] & 0xffff) != 0 : bit(bits, i);
      const bool negative = call_.checked ? bits[i] >> 16 != 0 : bit(bits + half, i);
      if (!positive && !negative) continue;
      out_bits(e - call_.out_begin, [&](auto* x, auto infinity) {
        using Bits = decltype(infinity);
        const Bits quiet = static_cast<Bits>((infinity & ~(infinity - 1)) >> 1);  // the bit below the exponent
        const Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
        *x = static_cast<Bits>(infinity | (positive && negative ? quiet : negative ? sign : Bits{0}));
      });
    }
    bits += special_words();
  }
}

void Stream::finish() {
  if (no_op_ || !call_.out) return;
  const auto clipped = [&](uint64_t from, uint64_t to, auto&& write) {
    from = std::max(from, call_.out_begin);
    to = std::min(to, call_.out_end);
    if (from < to) write(from, to - from);
  };
  // Blocks outside the union become +0, also if this rank's own zeros were negative.
  if (!sequence_.whole() && (call_.zero_fill || negative_zero_ || call_.memory)) {
    uint64_t next = 0;  // the first block that is not done
    const auto gap = [&](uint64_t to) {
      if (next < to) {
        remember(next * call_.block, std::min(to * call_.block, call_.count) - next * call_.block);
        clipped(next * call_.block, std::min(to * call_.block, call_.count),
                [&](uint64_t e, uint64_t n) { write_zeros(e, n); });
      }
    };
    for (uint32_t b : sequence_.blocks()) {
      gap(b);
      next = b + 1;
    }
    gap(call_.blocks());
  }
  // Chunks of zeros, of which nothing was sent.
  if (call_.in_limbs())
    for (size_t c = 0; c < sequence_.ranges().size(); ++c)
      if (sequence_.ranges()[c].highest == kNoExponent) finish_zeros(sequence_.chunk(c));
  if (refinement_) finish_refined();
  write_specials();
  if (nontemporal_) kernels_.flush();
}

}  // namespace switchagg
