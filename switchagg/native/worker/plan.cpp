#include "switchagg/native/worker/plan.h"

#include <algorithm>
#include <bit>

#include "switchagg/native/shared/wire.h"

namespace switchagg {

Call Call::segment(uint64_t from, uint64_t length) const {
  Call c = *this;
  const uint64_t to = from + length;
  const uint64_t size = element_bytes();
  c.count = length;
  c.first_element = first_element + static_cast<uint32_t>(from);
  c.before = before + from;
  const auto cut = [&](uint64_t& begin, uint64_t& end, auto& data) {
    const uint64_t first = std::max(begin, from), last = std::min(end, to);
    if (first >= last) {
      begin = end = 0;
      return;
    }
    data += (first - begin) * size;
    begin = first - from;
    end = last - from;
  };
  cut(c.in_begin, c.in_end, c.in);
  cut(c.out_begin, c.out_end, c.out);
  if (mask) c.mask = mask + from / block / 32;
  if (memory) c.memory = memory + from;
  if (union_out) c.union_out = union_out + from / block / 32;
  return c;
}

void Call::add_memory(const LaneKernels& kernels, uint64_t element, size_t n, float* sum) const {
  const uint64_t at = element - in_begin;
  const float* x = reinterpret_cast<const float*>(in) + at;
  if (dtype != DType::f32) {
    (dtype == DType::f16 ? kernels.widen_f16 : kernels.widen_bf16)(reinterpret_cast<const uint16_t*>(in) + at, n, sum);
    x = sum;
  }
  kernels.add_f32(x, memory + element, n, sum);
}

void Call::resolve_disjoint() {
  switch (kind) {
    case Kind::broadcast:
    case Kind::allgather:
    case Kind::gather:
    case Kind::scatter:
    case Kind::all_to_all:
    case Kind::allgatherv:
      disjoint = true;
      break;
    case Kind::extremum:  // gathered, or searched for
      disjoint = in_begin > 0 || in_end < count;
      break;
    default:
      disjoint = false;
  }
}

namespace {

constexpr uint64_t kSumElements = 4096;  // with a memory: of a piece, which stays in the first-level cache

// In word 11.
constexpr uint32_t kPause = 1, kWithdrawn = 2;
constexpr uint32_t kStripeShift = 8, kStripe = 15, kWeightShift = 16, kWeight = 63;
constexpr uint32_t kOfRank0 = kPause | kStripe << kStripeShift | kWeight << kWeightShift;
constexpr uint32_t kChecked = 1u << 23, kSealed = 1u << 22;  // in word 0
uint32_t lanes_code(uint32_t bits) { return bits ? static_cast<uint32_t>(std::bit_width(bits)) - 3 : 0; }

void write_header(const Call& call, uint32_t* words) {
  const uint32_t fingerprint[5] = {
      kPlanVersion << 28 | static_cast<uint32_t>(call.kind) << 24 | (call.checked ? kChecked : 0) | (call.sealed_job ? kSealed : 0) |
          static_cast<uint32_t>(call.op) << 16 | static_cast<uint32_t>(call.dtype) << 8 | call.bits,
      call.call_number,
      static_cast<uint32_t>(call.fingerprint_count),
      call.shape_crc,
      static_cast<uint32_t>(call.root) << 24 | (call.directed ? 1u << 23 : 0) | (call.auto_block ? 1u << 22 : 0) | (call.auto_zeros ? 1u << 21 : 0) |
          (call.sparse ? 1u << 20 : 0) | lanes_code(call.auto_lanes) << 17 | call.block,
  };
  for (int i = 0; i < 5; ++i) {
    words[i] = fingerprint[i];
    words[5 + i] = ~fingerprint[i];
  }
  words[10] = call.rank == 0 ? call.policy : 0;
  words[11] = (call.rank == 0 && call.pause ? kPause : 0) | (call.withdrawn ? kWithdrawn : 0);
  if (call.rank == 0) words[11] |= call.weight.stripe << kStripeShift | call.weight.weight << kWeightShift;
}

// The narrowest lanes of the type that have at least this many bits.
uint8_t lanes(DType dtype, uint32_t at_least) {
  switch (dtype) {
    case DType::i32:
    case DType::raw:
      return 32;
    case DType::i64:
      return 64;
    default:
      if (at_least <= 8) return 8;
      if (at_least <= 16) return 16;
      return dtype == DType::f64 && at_least > 32 ? 64 : 32;
  }
}

}  // namespace

void Policy::resolve(Call& call, uint32_t word) {
  if (call.auto_zeros) call.sparse = !(word & kDense);
  if (call.auto_block) call.block = word & kBlock;
  if (call.auto_lanes) {
    const uint32_t code = word >> kLanesShift & kLanes;
    const uint32_t shared = call.workers > 127 ? 16 : 8;  // the narrowest that so many workers can share
    call.bits = lanes(call.dtype, std::max<uint32_t>({code ? 4u << code : 64, call.auto_lanes, shared}));
  }
}

void PlanHeader::encode(const Call& call, uint32_t words, uint8_t* payload) {
  uint32_t header[kPlanHeaderWords];
  write_header(call, header);
  for (uint32_t i = 0; i < kPlanHeaderWords; ++i) wire::store32(payload + 4 * i, header[i]);
  std::fill(payload + 4 * kPlanHeaderWords, payload + 4 * static_cast<uint64_t>(words), uint8_t{0});
}

uint32_t PlanHeader::mismatch(const uint8_t* payload, uint32_t* difference, uint32_t* policy) {
  uint32_t fields = 0;
  for (int i = 0; i < 5; ++i) {
    difference[i] = wire::load32(payload + 4 * i) & wire::load32(payload + 4 * (5 + i));
    if (difference[i]) fields |= 1u << i;
  }
  *policy = wire::load32(payload + 40);
  return fields;
}

bool PlanHeader::pauses(const uint8_t* payload) { return wire::load32(payload + 44) & kPause; }
WeightChange PlanHeader::weight(const uint8_t* payload) {
  const uint32_t word = wire::load32(payload + 44);
  return {word >> kStripeShift & kStripe, word >> kWeightShift & kWeight};
}
bool PlanHeader::withdrawn(const uint8_t* payload) { return wire::load32(payload + 44) & kWithdrawn; }

void PlanHeader::protect(const Call& call, uint32_t words, uint8_t* payload) {
  if (call.rank != 0) return;
  wire::store32(payload + 4 * size_t{words}, ~wire::load32(payload + 40));
  wire::store32(payload + 4 * size_t{words} + 4, ~wire::load32(payload + 44) & kOfRank0);
}

std::array<uint32_t, kPlanHeaderWords> PlanHeader::words(const uint8_t* payload) {
  std::array<uint32_t, kPlanHeaderWords> words;
  for (uint32_t i = 0; i < kPlanHeaderWords; ++i) words[i] = wire::load32(payload + 4 * i);
  return words;
}

bool PlanHeader::is_protected(uint32_t words, const uint8_t* payload) {
  return wire::load32(payload + 4 * size_t{words}) == ~wire::load32(payload + 40) &&
         wire::load32(payload + 4 * size_t{words} + 4) == (~wire::load32(payload + 44) & kOfRank0);
}

Plan::Plan(const Call& call, uint32_t words, bool with_header)
    : call_(call),
      kernels_(choose_lane_kernels()),
      words_(words),
      header_words_(with_header ? kPlanHeaderWords : 0),
      bitmap_words_(call.sparse ? (call.blocks() + 31) / 32 : 0),
      scanner_(call) {
  const uint64_t total = header_words_ + call.rest_words();
  packets_ = (total + words - 1) / words;
  own_.assign(total, 0);
  agreed_.assign(total, 0);
  if (with_header) write_header(call, own_.data());
  if (call.exponents_apart()) exponents_.assign(call.chunks() * call.exponent_words(), 0);
  scanned_ = call.rest_words() == 0;
  seen_ = call.in_begin;
}

bool Plan::scan(uint64_t budget) {
  if (scanned_) return true;
  const uint64_t to = std::min(call_.in_end, seen_ + budget);
  if (to > seen_) scan_range(seen_, to);
  seen_ = std::max(seen_, to);
  if (seen_ < call_.in_end) return false;
  note_exponent();
  scanned_ = true;
  return true;
}

// Prefetches blocks that come after the next `blocks` of the mask from `block` on.
void Plan::fetch_after(uint64_t block, uint64_t blocks) {
  fetched_ -= std::min(fetched_, blocks);
  if (fetched_to_ < block + blocks) {
    fetched_to_ = block + blocks;
    fetched_ = 0;
  }
  const uint64_t bytes = call_.block * uint64_t{call_.element_bytes()}, end = call_.blocks();
  while (fetched_ < kFetched && (fetched_to_ = next_bit(call_.mask, fetched_to_, end)) < end) {
    fetch_block(call_.in + fetched_to_ * bytes, bytes);
    ++fetched_to_;
    ++fetched_;
  }
}

// Scans whole blocks of a chunk at a time, or parts of blocks where blocks and chunks are not aligned.
void Plan::scan_range(uint64_t from, uint64_t to) {
  const bool scaled = call_.scaled();
  const uint64_t chunk = call_.chunk();
  const uint32_t block = call_.block;
  std::vector<uint32_t> unused;
  uint32_t* bits = own_.data() + header_words_;
  if (!call_.sparse) {
    unused.assign((call_.blocks() + 31) / 32, 0);
    bits = unused.data();
  }
  uint64_t at = from;
  while (at < to) {
    const uint64_t chunk_end = scaled ? std::min((at / chunk + 1) * chunk, to) : to;
    while (at < chunk_end) {
      const uint64_t b = at / block;
      uint64_t blocks = 1, length = block;
      if (at % block == 0 && chunk_end - at >= block) {
        blocks = (chunk_end - at) / block;
      } else {
        length = std::min((b + 1) * block, chunk_end) - at;
      }
      if (call_.mask) {
        const auto wanted = [&](uint64_t i) { return (call_.mask[i >> 5] >> (i & 31)) & 1; };
        if (!wanted(b)) {
          at = std::min(next_bit(call_.mask, b + 1, (to + block - 1) / block) * block, to);
          break;
        }
        uint64_t run = 0;
        while (run < blocks && wanted(b + run)) ++run;
        blocks = run;
        fetch_after(b, run);
      }
      if (scaled) {
        if (at / chunk != scanned_chunk_) note_exponent();
        scanned_chunk_ = at / chunk;
        scanner_.scan(at, blocks, length, bits, b);
      } else {
        const void* x = call_.in + (at - call_.in_begin) * call_.element_bytes();
        kernels_.scan_words(static_cast<const uint32_t*>(x), blocks, length * (call_.element_bytes() / 4), bits, b);
      }
      at += blocks * length;
    }
  }
}

// Of the chunk that was scanned last.
void Plan::note_exponent() {
  const uint64_t chunk = scanned_chunk_;
  if (chunk == UINT64_MAX) return;
  uint32_t* exponents = call_.exponents_apart() ? exponents_.data() : own_.data() + header_words_ + bitmap_words_;
  scanner_.note(exponents + chunk * call_.exponent_words(), [&] {
    const uint64_t from = chunk * call_.chunk();
    return largest_finite(call_, std::max(from, call_.in_begin), std::min(from + call_.chunk(), call_.in_end));
  });
}

uint64_t Scanner::infinity_of(DType dtype) {
  return dtype == DType::f64 ? 0x7ff0000000000000 : dtype == DType::f16 ? 0x7c00 : dtype == DType::bf16 ? 0x7f80 : 0x7f800000;
}

template <typename T>
void Scanner::widen(const Extremes<T>& e) {
  found_.largest = std::max<uint64_t>(found_.largest, e.largest);
  if (e.smallest != static_cast<T>(~T{0})) found_.smallest = std::min<uint64_t>(found_.smallest, e.smallest);
  found_.negative_zero |= e.negative_zero;
}

void Scanner::scan(uint64_t element, uint64_t blocks, uint64_t length, uint32_t* bits, uint64_t at) {
  const auto look = [&]<typename T>(auto kernel, const void* x, uint64_t n, uint64_t first, T) {
    Extremes<T> e;
    kernel(static_cast<const T*>(x), n, length, bits, first, &e);
    widen(e);
  };
  const auto scan32 = call_.bits == kExact ? kernels_.scan32_smallest : kernels_.scan32;
  if (call_.memory) {
    const uint64_t each = std::max<uint64_t>(1, kSumElements / length);
    for (uint64_t b = 0; b < blocks; b += each) {
      const uint64_t n = std::min(each, blocks - b);
      sum_.resize(std::max<size_t>(sum_.size(), n * length));
      call_.add_memory(kernels_, element + b * length, n * length, sum_.data());
      look(scan32, sum_.data(), n, at + b, uint32_t{});
    }
    return;
  }
  const void* x = call_.in + (element - call_.in_begin) * call_.element_bytes();
  if (call_.dtype == DType::f32) {
    look(scan32, x, blocks, at, uint32_t{});
  } else if (call_.dtype == DType::f64) {
    look(kernels_.scan64, x, blocks, at, uint64_t{});
  } else {
    look(kernels_.scan16, x, blocks, at, uint16_t{});
  }
}

// The bit of a magnitude's exponent field, which for halves is that of the value in float32.
void Scanner::set_exponent(uint32_t* exponents, uint64_t magnitude) const {
  const DType dtype = call_.scanned_type();
  uint32_t exponent = static_cast<uint32_t>(magnitude >> (dtype == DType::f64 ? 52 : dtype == DType::bf16 ? 7 : 23));
  if (dtype == DType::f16) {
    float wide;
    const uint16_t half = static_cast<uint16_t>(magnitude);
    kernels_.widen_f16(&half, 1, &wide);
    exponent = std::bit_cast<uint32_t>(wide) >> 23;
  }
  switchagg::set_exponent(call_, exponents, exponent);
}

void set_exponent(const Call& call, uint32_t* exponents, uint64_t field) {
  const bool finite = field < call.not_finite();
  uint64_t bit = field >> call.cut_exponent_bits();
  if (finite) bit = std::min<uint64_t>(bit, 32 * call.exponent_words() - 2);  // the last bit is that of NaN and Inf
  exponents[bit / 32] |= 1u << (bit % 32);
}

namespace {

template <typename T>
uint64_t largest_below(const void* x, size_t n, int mantissa) {
  constexpr T magnitudes = static_cast<T>(static_cast<T>(~T{0}) >> 1);
  const T infinity = static_cast<T>(magnitudes >> mantissa << mantissa);
  const T* bits = static_cast<const T*>(x);
  T top = 0;
  for (size_t i = 0; i < n; ++i) {
    const T magnitude = static_cast<T>(bits[i] & magnitudes);
    if (magnitude < infinity) top = std::max(top, magnitude);
  }
  return top;
}

}  // namespace

uint64_t largest_finite(const Call& call, uint64_t from, uint64_t to) {
  uint64_t top = 0;
  std::vector<float> sum;
  each_block(call, from, to, [&](uint64_t b, uint64_t at, uint64_t end) {
    if (call.mask && !((call.mask[b >> 5] >> (b & 31)) & 1)) return;
    const void* x = call.in + (at - call.in_begin) * call.element_bytes();
    if (call.memory) {
      sum.resize(end - at);
      call.add_memory(choose_lane_kernels(), at, end - at, sum.data());
      x = sum.data();
    }
    const DType dtype = call.scanned_type();
    top = std::max(top, dtype == DType::f64   ? largest_below<uint64_t>(x, end - at, 52)
                        : dtype == DType::f32 ? largest_below<uint32_t>(x, end - at, 23)
                                              : largest_below<uint16_t>(x, end - at, dtype == DType::f16 ? 10 : 7));
  });
  return top;
}

bool store_words(const std::vector<uint32_t>& all, uint64_t packet, uint32_t words, uint8_t* payload) {
  const uint64_t from = packet * words, to = std::min<uint64_t>(from + words, all.size());
  uint32_t any = 0;
  for (uint64_t i = from; i < to; ++i) {
    any |= all[i];
    wire::store32(payload + 4 * (i - from), all[i]);
  }
  std::fill(payload + 4 * (to - from), payload + 4 * static_cast<uint64_t>(words), uint8_t{0});
  return any != 0;
}

void load_words(std::vector<uint32_t>& all, uint64_t packet, uint32_t words, const uint8_t* payload) {
  if (!payload) return;
  const uint64_t from = packet * words, to = std::min<uint64_t>(from + words, all.size());
  for (uint64_t i = from; i < to; ++i) all[i] = wire::load32(payload + 4 * (i - from));
}

bool Plan::encode(uint64_t packet, uint8_t* payload) const { return store_words(own_, packet, words_, payload); }

void Plan::decode(uint64_t packet, const uint8_t* payload) {
  if (!payload) return;
  load_words(agreed_, packet, words_, payload);
  const uint64_t from = packet * words_, to = std::min<uint64_t>(from + words_, own_.size());
  // Clears bits behind the last block, which a faulty rank may have set: a stream would write these blocks.
  const uint64_t last = header_words_ + bitmap_words_ - 1;
  if (bitmap_words_ > 0 && call_.blocks() % 32 != 0 && from <= last && last < to)
    agreed_[last] &= (1u << (call_.blocks() % 32)) - 1;
}

uint64_t Plan::own_blocks() const { return kernels_.count_bits(own_bitmap(), bitmap_words_); }

std::vector<ChunkRange> Plan::ranges() const {
  return ranges_of(call_, agreed_.data() + header_words_ + bitmap_words_, call_.chunks());
}

std::vector<ChunkRange> Plan::own_ranges() const {
  return ranges_of(call_, own_.data() + header_words_ + bitmap_words_, call_.chunks());
}

std::vector<ChunkRange> ranges_of(const Call& call, const uint32_t* words, uint64_t chunks) {
  std::vector<ChunkRange> out(chunks);
  const uint32_t each = call.exponent_words();
  const uint32_t cut = call.cut_exponent_bits();
  const int last = 32 * static_cast<int>(each) - 1;  // the bit of NaN and Inf
  for (uint64_t c = 0; c < out.size(); ++c, words += each) {
    ChunkRange& range = out[c];
    for (int w = 0; w < static_cast<int>(each); ++w) {
      uint32_t bits = words[w];
      if (w == last / 32) {
        range.special = bits >> 31;
        bits &= ~(1u << 31);
      }
      if (!bits) continue;
      const int highest = 32 * w + 31 - std::countl_zero(bits);
      if (range.lowest == kNoExponent) range.lowest = static_cast<int16_t>((32 * w + std::countr_zero(bits)) << cut);
      range.highest = static_cast<int16_t>(highest + 1 < last ? ((highest + 1) << cut) - 1 : call.not_finite() - 1);
    }
  }
  return out;
}

}  // namespace switchagg
