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

namespace {

constexpr uint64_t kSumElements = 4096;  // with a memory: of a piece, which stays in the first-level cache

constexpr uint32_t kPause = 1, kWithdrawn = 2;  // in word 11
uint32_t lanes_code(uint32_t bits) { return bits ? static_cast<uint32_t>(std::bit_width(bits)) - 3 : 0; }

void write_header(const Call& call, uint32_t* words) {
  const uint32_t fingerprint[5] = {
      kPlanVersion << 28 | static_cast<uint32_t>(call.kind) << 24 | static_cast<uint32_t>(call.op) << 16 |
          static_cast<uint32_t>(call.dtype) << 8 | call.bits,
      call.call_number,
      static_cast<uint32_t>(call.fingerprint_count),
      call.shape_crc,
      static_cast<uint32_t>(call.root) << 24 | (call.auto_block ? 1u << 22 : 0) | (call.auto_zeros ? 1u << 21 : 0) |
          (call.sparse ? 1u << 20 : 0) | lanes_code(call.auto_lanes) << 17 | call.block,
  };
  for (int i = 0; i < 5; ++i) {
    words[i] = fingerprint[i];
    words[5 + i] = ~fingerprint[i];
  }
  words[10] = call.rank == 0 ? call.policy : 0;
  words[11] = (call.rank == 0 && call.pause ? kPause : 0) | (call.withdrawn ? kWithdrawn : 0);
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
bool PlanHeader::withdrawn(const uint8_t* payload) { return wire::load32(payload + 44) & kWithdrawn; }

Plan::Plan(const Call& call, uint32_t words, bool with_header)
    : call_(call),
      kernels_(choose_lane_kernels()),
      words_(words),
      header_words_(with_header ? kPlanHeaderWords : 0),
      bitmap_words_(call.sparse ? (call.blocks() + 31) / 32 : 0) {
  const uint64_t total = header_words_ + call.rest_words();
  packets_ = (total + words - 1) / words;
  own_.assign(total, 0);
  agreed_.assign(total, 0);
  if (with_header) write_header(call, own_.data());
  if (call.in_limbs()) smallest_.assign(call.chunks(), UINT64_MAX);
  scanned_ = call.rest_words() == 0;
  seen_ = call.in_begin;
}

bool Plan::scan(uint64_t budget) {
  if (scanned_) return true;
  const uint64_t to = std::min(call_.in_end, seen_ + budget);
  if (to > seen_) scan_range(seen_, to);
  seen_ = std::max(seen_, to);
  if (seen_ < call_.in_end) return false;
  if (call_.chunks() && call_.in_end > call_.in_begin) note_exponent((call_.in_end - 1) / call_.chunk());
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
  while (fetched_ < kFetched && fetched_to_ < end) {
    const uint32_t rest = call_.mask[fetched_to_ >> 5] >> (fetched_to_ & 31);
    if (rest == 0) {
      fetched_to_ = (fetched_to_ | 31) + 1;
      continue;
    }
    fetched_to_ += static_cast<uint64_t>(std::countr_zero(rest));
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
    if (scaled && at % chunk == 0 && at > call_.in_begin) note_exponent(at / chunk - 1);
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
        uint64_t run = 0;
        if (!wanted(b)) {
          while (run < blocks && !wanted(b + run))
            run += ((b + run) & 31) == 0 && run + 32 <= blocks && call_.mask[(b + run) >> 5] == 0 ? 32 : 1;
          at += run * length;
          continue;
        }
        while (run < blocks && wanted(b + run)) ++run;
        blocks = run;
        fetch_after(b, run);
      }
      const void* x = call_.in + (at - call_.in_begin) * call_.element_bytes();
      const auto scan = [&]<typename T>(auto kernel, auto smallest, T top) {
        kernel(static_cast<const T*>(x), blocks, length, bits, b, &top, &negative_zero_);
        top_ = top;
        if (call_.in_limbs()) bottom_ = std::min<uint64_t>(bottom_, smallest(static_cast<const T*>(x), blocks * length));
      };
      if (call_.memory) {
        blocks = std::min(blocks, std::max<uint64_t>(1, kSumElements / length));
        sum_.resize(std::max<size_t>(sum_.size(), blocks * length));
        call_.add_memory(kernels_, at, blocks * length, sum_.data());
        x = sum_.data();
      }
      if (!scaled) {
        kernels_.scan_words(static_cast<const uint32_t*>(x), blocks, length * (call_.element_bytes() / 4), bits, b);
      } else if (call_.memory || call_.dtype == DType::f32) {
        scan(kernels_.scan32, kernels_.smallest32, static_cast<uint32_t>(top_));
      } else if (call_.dtype == DType::f64) {
        scan(kernels_.scan64, kernels_.smallest64, top_);
      } else {
        scan(kernels_.scan16, kernels_.smallest16, static_cast<uint16_t>(top_));
      }
      at += blocks * length;
    }
  }
}

namespace {

// The bits of infinity in a type, and of its sign.
uint64_t infinity_of(DType dtype) {
  return dtype == DType::f64 ? 0x7ff0000000000000 : dtype == DType::f16 ? 0x7c00 : dtype == DType::bf16 ? 0x7f80 : 0x7f800000;
}

template <typename T>
uint64_t largest_below(const void* x, size_t n, uint64_t infinity) {
  const T* bits = static_cast<const T*>(x);
  uint64_t top = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t magnitude = bits[i] & static_cast<T>(static_cast<T>(~T{0}) >> 1);
    if (magnitude < infinity) top = std::max(top, magnitude);
  }
  return top;
}

}  // namespace

// The largest finite magnitude of a chunk that holds NaN or Inf, which is rare.
uint64_t Plan::largest_finite(uint64_t chunk) const {
  const uint64_t to = std::min((chunk + 1) * call_.chunk(), call_.in_end), infinity = infinity_of(call_.scanned_type());
  uint64_t top = 0;
  std::vector<float> sum;
  for (uint64_t at = std::max(chunk * call_.chunk(), call_.in_begin), end; at < to; at = end) {
    const uint64_t b = at / call_.block;
    end = std::min((b + 1) * call_.block, to);
    if (call_.mask && !((call_.mask[b >> 5] >> (b & 31)) & 1)) continue;
    const void* x = call_.in + (at - call_.in_begin) * call_.element_bytes();
    if (call_.memory) {
      sum.resize(end - at);
      call_.add_memory(kernels_, at, end - at, sum.data());
      x = sum.data();
    }
    const auto largest = call_.scanned_type() == DType::f64   ? largest_below<uint64_t>
                         : call_.scanned_type() == DType::f32 ? largest_below<uint32_t>
                                                              : largest_below<uint16_t>;
    top = std::max(top, largest(x, end - at, infinity));
  }
  return top;
}

void Plan::note_exponent(uint64_t chunk) {
  const uint64_t infinity = infinity_of(call_.scanned_type());
  if (top_ >= infinity) {
    set_exponent(chunk, infinity);
    top_ = largest_finite(chunk);
  }
  if (top_ != 0) set_exponent(chunk, top_);
  if (bottom_ < infinity) {
    set_exponent(chunk, bottom_);
    smallest_[chunk] = bottom_;
  }
  top_ = 0;
  bottom_ = UINT64_MAX;
}

// Sets the bit of a magnitude's exponent field, which for halves is that of the value in float32.
void Plan::set_exponent(uint64_t chunk, uint64_t magnitude) {
  const DType dtype = call_.scanned_type();
  uint32_t exponent = static_cast<uint32_t>(magnitude >> (dtype == DType::f64 ? 52 : dtype == DType::bf16 ? 7 : 23));
  if (dtype == DType::f16) {
    float wide;
    const uint16_t half = static_cast<uint16_t>(magnitude);
    kernels_.widen_f16(&half, 1, &wide);
    exponent = std::bit_cast<uint32_t>(wide) >> 23;
  }
  own_[header_words_ + bitmap_words_ + chunk * call_.exponent_words() + exponent / 32] |= 1u << (exponent % 32);
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
  std::vector<ChunkRange> out(call_.chunks());
  const uint32_t each = call_.exponent_words();
  const uint32_t* words = agreed_.data() + header_words_ + bitmap_words_;
  constexpr uint32_t kTop = 1u << 31;  // the field of NaN and Inf is the last bit
  for (uint64_t c = 0; c < out.size(); ++c, words += each) {
    ChunkRange& range = out[c];
    range.special = words[each - 1] & kTop;
    for (uint32_t w = 0; w < each; ++w) {
      const uint32_t bits = w == each - 1 ? words[w] & ~kTop : words[w];
      if (!bits) continue;
      if (range.lowest == kNoExponent) range.lowest = static_cast<int16_t>(w * 32 + static_cast<uint32_t>(std::countr_zero(bits)));
      range.highest = static_cast<int16_t>(w * 32 + 31 - static_cast<uint32_t>(std::countl_zero(bits)));
    }
  }
  return out;
}

}  // namespace switchagg
