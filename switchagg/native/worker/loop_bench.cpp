#include "switchagg/native/worker/loop_bench.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/kernel_choice.h"
#include "switchagg/native/shared/splitmix.h"

namespace switchagg {
namespace {

using Memory = LoopBench::Memory;
using Loop = LoopBench::Loop;

constexpr size_t kGranule = 4096, kBlock = 64, kPacket = 256, kRotated = 1024;
constexpr float kTop8 = 31 << 16, kTop16 = 8191 << 16;  // 2^16 times the largest lanes of 4 workers
constexpr float kScales8[] = {kTop8, kTop8 / 2, kTop8 / 4, kTop8}, kScales16[] = {kTop16, kTop16 / 2};
constexpr uint32_t kKey = 0x1234567u;
constexpr DrawKey kDraw{0x1234567u, 0x89ABCDEFu};
constexpr ScaleF kUp{0x1p20f, 1, 1}, kDown{0x1p-20f, 1, 1};
constexpr ScaleD kUpWide{0x1p25, 0x1p25, 0x1p51}, kDownWide{0x1p-25, 0x1p-25, 1};
constexpr ScaleD kUp64{0x1p20, 1, 0x1p24}, kDown64{0x1p-20, 1, 1};
constexpr float kUnit = 0x1p-5f;

template <typename T>
T* out(const Memory& m) {
  return reinterpret_cast<T*>(m.out);
}

template <typename T, typename Scan>
Extremes<T> scanned(Scan scan, const T* x, const Memory& m, size_t n) {
  Extremes<T> found;
  scan(x, n / kBlock, kBlock, out<uint32_t>(m), 0, &found);
  return found;
}

template <typename T>
uint64_t all_of(const Extremes<T>& found) {
  return found.largest + std::rotl(uint64_t{found.smallest}, 32) + found.negative_zero;
}

// Calls f(first element, elements) for each packet, and adds up what it returns.
template <typename F>
uint64_t packets(size_t n, size_t size, F&& f) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i += size) sum = std::rotl(sum, 1) + static_cast<uint64_t>(f(i, size));
  return sum;
}

// Calls f(first element, its word, words) for two pieces of each packet, of words of so many lanes, that are no whole vectors.
template <typename F>
void pieces(size_t n, size_t lanes, F&& f) {
  constexpr size_t kFirst = kPacket / 2 - 3;
  for (size_t i = 0; i < n; i += lanes * kPacket) {
    f(i, i / lanes, kFirst);
    f(i + kFirst, i / lanes + kFirst, kPacket - kFirst);
  }
}

#define LOOP(name, read, written, ...)                                                                        \
  Loop {                                                                                                      \
    name, (read) + (written),                                                                                 \
        []([[maybe_unused]] const KernelSet& k, const Memory& m, size_t n) -> uint64_t { __VA_ARGS__; return 0; } \
  }

// Bytes of 16 elements. Loops come first that every float32 sum needs.
const Loop kLoops[] = {
    LOOP("scan32", 64, 0, return scanned<uint32_t>(k.lanes.scan32, reinterpret_cast<uint32_t*>(m.floats), m, n).largest),
    LOOP("scan32_smallest", 64, 0, return all_of(scanned<uint32_t>(k.lanes.scan32_smallest, reinterpret_cast<uint32_t*>(m.floats), m, n))),
    LOOP("quantize_f32_be", 64, 64, k.lanes.quantize_f32_be(m.floats, n, kUp, out<uint32_t>(m))),
    LOOP("dequantize_f32_be", 64, 64, k.lanes.dequantize_f32_be(m.words, n, kDown, out<float>(m), false)),
    LOOP("sum_f32, 2 workers", 128, 128, const float* const from[] = {m.floats, m.others};
         k.lanes.sum_f32(from, 2, n, kUp, kDown, out<float>(m), out<float>(m) + n, false)),
    LOOP("dequantize_large", 64, 64, return k.lanes.dequantize_large(m.words, n, 1, kDown, out<float>(m), false)),
    LOOP("small_sums32", 64, 0, return packets(n, kRotated, [&](size_t i, size_t size) {
           return k.lanes.small_sums32(m.words + i, size, 1024, out<uint32_t>(m) + i / 32, out<uint32_t>(m) + (n + i) / 32);
         })),
    LOOP("large32", 64, 0, return packets(n, 32, [&](size_t i, size_t) {
           return k.lanes.large32(m.floats + i, 0.5f, out<uint32_t>(m) + i / 32);
         })),
    LOOP("dither_lane, 8 bits", 64, 128, k.lanes.dither_lane(m.floats, n, {kTop8, 1, 1}, kKey, 0, 8, out<uint32_t>(m))),
    LOOP("dither_lane, 16 bits", 64, 128, k.lanes.dither_lane(m.floats, n, {kTop16, 1, 1}, kKey, 0, 16, out<uint32_t>(m))),
    LOOP("dequantize_lane8", 64, 64, k.lanes.dequantize_lane8(m.words, n, 8, kDown, out<float>(m), false)),
    LOOP("dequantize_lane16", 64, 64, k.lanes.dequantize_lane16(m.words, n, 16, kDown, out<float>(m), false)),
    LOOP("dither_words, 8 bits", 64, 16, pieces(n, 4, [&](size_t i, size_t word, size_t size) {
           k.lanes.dither_words8(m.floats + i, kPacket, size, kScales8, kKey, static_cast<uint32_t>(i), 0, out<uint32_t>(m) + word);
         })),
    LOOP("dither_words, 16 bits", 64, 32, pieces(n, 2, [&](size_t i, size_t word, size_t size) {
           k.lanes.dither_words16(m.floats + i, kPacket, size, kScales16, kKey, static_cast<uint32_t>(i), 0, out<uint32_t>(m) + word);
         })),
    LOOP("dequantize_words8", 16, 64, pieces(n, 4, [&](size_t i, size_t word, size_t size) {
           k.lanes.dequantize_words8(m.words + word, size, kScales8, out<float>(m) + i, kPacket);
         })),
    LOOP("dequantize_words16", 32, 64, pieces(n, 2, [&](size_t i, size_t word, size_t size) {
           k.lanes.dequantize_words16(m.words + word, size, kScales16, out<float>(m) + i, kPacket);
         })),
    LOOP("pack32", 64, 64, k.lanes.pack32(m.lanes, n, out<uint32_t>(m))),
    LOOP("unpack32", 64, 64, k.lanes.unpack32(m.words, n, out<int32_t>(m))),
    LOOP("weighted_sum_be", 64, 0, return packets(n, kPacket, [&](size_t i, size_t size) {
           return k.lanes.weighted_sum_be(m.words + i, m.lanes, size);
         })),
    LOOP("quantize_weighted", 64, 64, return packets(n, kPacket, [&](size_t i, size_t size) {
           return k.lanes.quantize_weighted(m.floats + i, size, kUp, out<uint32_t>(m) + i, m.lanes);
         })),
    LOOP("dequantize_weighted", 64, 64, return packets(n, kPacket, [&](size_t i, size_t size) {
           return k.lanes.dequantize_weighted(m.words + i, size, kDown, out<float>(m) + i, false, m.lanes);
         })),
    LOOP("pad_be, two pads", 192, 64, k.lanes.pad_be(m.words, m.planes, m.planes + n, n, out<uint32_t>(m))),
    LOOP("slots: copy", 64, 64, k.slots.copy(m.out, reinterpret_cast<uint8_t*>(m.words), n)),
    LOOP("slots: add", 128, 64, k.slots.add(m.out, reinterpret_cast<uint8_t*>(m.words), n)),
    LOOP("slots: or_words", 128, 64, k.slots.or_words(m.out, reinterpret_cast<uint8_t*>(m.words), n)),
    LOOP("slots: add_all, 4 workers", 256, 64,
         const uint8_t* const from[] = {reinterpret_cast<uint8_t*>(m.words), reinterpret_cast<uint8_t*>(m.planes),
                                        reinterpret_cast<uint8_t*>(m.planes + n), reinterpret_cast<uint8_t*>(m.planes + 2 * n)};
         k.slots.add_all(m.out, from, 4, n)),
    LOOP("slots: or_all, 4 workers", 256, 64,
         const uint8_t* const from[] = {reinterpret_cast<uint8_t*>(m.words), reinterpret_cast<uint8_t*>(m.planes),
                                        reinterpret_cast<uint8_t*>(m.planes + n), reinterpret_cast<uint8_t*>(m.planes + 2 * n)};
         k.slots.or_all(m.out, from, 4, n)),
    LOOP("exact_limb_f32", 64, 64, k.lanes.exact_limb_f32(m.floats, n, 110, 0x1FFFFF, out<uint32_t>(m))),
    LOOP("cut_off_f32", 64, 64, k.lanes.cut_off_f32(m.others, n, kUp, kDown, out<float>(m))),
    LOOP("exact_pair_f32", 128, 64, k.lanes.exact_pair_f32(m.planes, m.words, n, 22, 45, 1, 0x1p-40, out<float>(m), false)),
    LOOP("odd_f32_be", 64, 64, k.lanes.odd_f32_be(m.words, n, kDown, out<float>(m))),
    LOOP("add_f32", 128, 64, k.lanes.add_f32(m.floats, m.others, n, out<float>(m))),
    LOOP("quantize_f32", 64, 64, k.lanes.quantize_f32(m.floats, n, kUp, out<int32_t>(m))),
    LOOP("dequantize_f32", 64, 64, k.lanes.dequantize_f32(m.lanes, n, kDown, out<float>(m))),
    LOOP("scan16", 32, 0, return all_of(scanned<uint16_t>(k.lanes.scan16, m.halves, m, n))),
    LOOP("widen_f16", 32, 64, k.lanes.widen_f16(m.halves, n, out<float>(m))),
    LOOP("narrow_f16", 64, 32, k.lanes.narrow_f16(m.floats, n, out<uint16_t>(m))),
    LOOP("widen_bf16", 32, 64, k.lanes.widen_bf16(m.halves, n, out<float>(m))),
    LOOP("narrow_bf16", 64, 32, k.lanes.narrow_bf16(m.floats, n, out<uint16_t>(m))),
    LOOP("scan64", 128, 0, return all_of(scanned<uint64_t>(k.lanes.scan64, reinterpret_cast<uint64_t*>(m.doubles), m, n))),
    LOOP("quantize_f64", 128, 64, k.lanes.quantize_f64(m.doubles, n, kUp64, out<int32_t>(m))),
    LOOP("dequantize_f64", 64, 128, k.lanes.dequantize_f64(m.lanes, n, kDown64, out<double>(m))),
    LOOP("quantize_f64_limbs", 128, 128, k.lanes.quantize_f64_limbs(m.doubles, n, kUpWide, out<int64_t>(m))),
    LOOP("dequantize_f64_limbs", 128, 128, k.lanes.dequantize_f64_limbs(m.wide, n, kDownWide, out<double>(m))),
    LOOP("pack_limbs", 128, 192, k.lanes.pack_limbs(m.wide, n, out<uint32_t>(m))),
    LOOP("unpack_limbs", 192, 128, k.lanes.unpack_limbs(m.planes, n, out<int64_t>(m))),
    LOOP("exact_limb_f64", 128, 64, k.lanes.exact_limb_f64(m.doubles, n, 1040, 0x1FFFFF, out<uint32_t>(m))),
    LOOP("exact_triple_f64", 192, 128,
         k.lanes.exact_triple_f64(m.planes, m.planes + n, m.planes + 2 * n, n, 22, kDownWide, out<double>(m))),
    LOOP("scan_words", 64, 0, k.lanes.scan_words(m.words, n / kBlock, kBlock, out<uint32_t>(m), 0)),
    LOOP("count_bits", 64, 0, return k.lanes.count_bits(m.words, n)),
    LOOP("round", 64, 64, return k.compress.f32.round(m.floats, n, kUnit, 31, kDraw, 0, out<int32_t>(m))),
    LOOP("scale", 64, 64, k.compress.f32.scale(m.lanes, n, kUnit, out<float>(m))),
    LOOP("pack, 8 bits", 64, 16, k.compress.pack(m.bytes, n / 4, 8, out<uint32_t>(m))),
    LOOP("unpack, 8 bits", 16, 64, k.compress.unpack(m.words, n / 4, 8, out<int32_t>(m))),
    LOOP("pack, 4 bits", 64, 8, k.compress.pack(m.bytes, n / 8, 4, out<uint32_t>(m))),
    LOOP("unpack, 4 bits", 8, 64, k.compress.unpack(m.words, n / 8, 4, out<int32_t>(m))),
    LOOP("square", 64, 0, return k.compress.square(m.bytes, n)),
    LOOP("rotate", 64, 64, packets(n, kRotated, [&](size_t i, size_t size) {
           alignas(64) float scratch[2 * kRotated];
           k.compress.f32.rotate(m.floats + i, size, size, kDraw, static_cast<uint32_t>(i), kUnit, scratch, out<float>(m) + i);
           return 0;
         })),
    LOOP("unrotate", 64, 64, packets(n, kRotated, [&](size_t i, size_t size) {
           alignas(64) float scratch[2 * kRotated];
           k.compress.f32.unrotate(m.floats + i, size, size, kDraw, static_cast<uint32_t>(i), kUnit, scratch, out<float>(m) + i);
           return 0;
         })),
    LOOP("low_bits", 64, 64, return k.compress.f32.low_bits(m.floats, n, kUnit, kDraw, 0, out<int32_t>(m))),
    LOOP("rounded", 64, 64, k.compress.f32.rounded(m.floats, n, kUnit, kDraw, 0, out<float>(m))),
    LOOP("expect", 128, 192, k.compress.expect(m.doubles, n, 0x1p20, out<double>(m), out<int32_t>(m) + 2 * n)),
    LOOP("unpack_near, 8 bits", 80, 64, k.compress.unpack_near(m.words, n / 4, 8, m.lanes, out<int32_t>(m))),
    LOOP("sum_near", 192, 192, return static_cast<uint64_t>(
             k.compress.f32.sum_near(m.doubles, m.bytes, n, kUnit, 4, out<float>(m) + 2 * n, out<double>(m)))),
    LOOP("check", 192, 0, return k.compress.check(m.lanes, m.bytes, m.words, n)),
};
#undef LOOP

KernelSet kernels_of(size_t level) {
  return {*std::initializer_list<const LaneKernels*> KERNEL_SETS(lane_kernels).begin()[level],
          *std::initializer_list<const CompressKernels*> KERNEL_SETS(compress_kernels).begin()[level],
          *std::initializer_list<const SlotKernels*> KERNEL_SETS(slot_kernels).begin()[level]};
}

uint32_t big(uint32_t word) { return std::endian::native == std::endian::little ? __builtin_bswap32(word) : word; }

}  // namespace

std::span<const Loop> LoopBench::loops() { return kLoops; }
size_t LoopBench::levels() { return runnable_levels(); }

LoopBench::LoopBench(uint64_t seed, size_t elements) : elements_(elements) {
  if (elements == 0 || elements % kGranule) throw std::invalid_argument("elements must be a multiple of 4096");
  constexpr size_t kIn = 4 + 4 + 8 + 4 + 8 + 4 + 12 + 2 + 4;
  in_ = PacketMemory(kIn * elements);
  out_ = PacketMemory(kOut * elements);
  uint8_t* next = in_.get();
  const auto take = [&](auto*& array, size_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(next);
    next += count * sizeof *array;
  };
  take(memory_.doubles, elements);
  take(memory_.wide, elements);
  take(memory_.floats, elements);
  take(memory_.others, elements);
  take(memory_.lanes, elements);
  take(memory_.words, elements);
  take(memory_.planes, 3 * elements);
  take(memory_.bytes, elements);
  take(memory_.halves, elements);
  memory_.out = out_.get();
  for (size_t i = 0; i < elements; ++i) {
    const uint64_t drawn = splitmix(seed + i * kSplitMixStep), more = splitmix(drawn + 1);
    const int64_t sign = drawn & 1 ? -1 : 1;
    const int64_t wide = sign * static_cast<int64_t>(1 + (drawn >> 14));
    const int32_t lane = static_cast<int32_t>(sign * static_cast<int64_t>(1 + (more >> 44)));
    memory_.doubles[i] = static_cast<double>(wide) * 0x1p-50;
    memory_.wide[i] = wide;
    memory_.floats[i] = static_cast<float>(lane) * 0x1p-20f;
    memory_.others[i] = static_cast<float>(wide) * 0x1p-50f;
    memory_.lanes[i] = lane;
    memory_.words[i] = big(static_cast<uint32_t>(lane));
    memory_.bytes[i] = static_cast<int32_t>(sign * static_cast<int64_t>(more & 127));
    memory_.halves[i] = static_cast<uint16_t>((drawn & 0x83FF) | (1 + (more >> 16) % 29) << 10);
  }
  kernels_of(0).lanes.pack_limbs(memory_.wide, elements, memory_.planes);
  std::memset(memory_.out, 0, kOut * elements);
}

std::pair<int64_t, int64_t> LoopBench::measure(size_t loop, size_t level, uint32_t runs) {
  const Loop& which = kLoops[loop];
  const KernelSet kernels = kernels_of(level);
  const size_t copied = elements_ * which.bytes / 32;
  const int64_t begun = now_ns();
  for (uint32_t i = 0; i < runs; ++i) {
    which.run(kernels, memory_, elements_);
    asm volatile("" ::: "memory");
  }
  const int64_t between = now_ns();
  for (uint32_t i = 0; i < runs; ++i) {
    std::memcpy(memory_.out, in_.get(), copied);
    asm volatile("" ::: "memory");
  }
  return {between - begun, now_ns() - between};
}

uint64_t LoopBench::digest(size_t loop, size_t level) {
  std::memset(memory_.out, 0, kOut * elements_);
  uint64_t hash = kLoops[loop].run(kernels_of(level), memory_, elements_);
  for (size_t i = 0; i < kOut * elements_; i += 8) {
    uint64_t next;
    std::memcpy(&next, memory_.out + i, 8);
    hash = splitmix(std::rotl(hash, 1) + next);
  }
  return hash;
}

}  // namespace switchagg
