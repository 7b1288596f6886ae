#include "switchagg/native/worker/aes_kernel.h"

#include <algorithm>

#include "switchagg/native/shared/kernel_choice.h"

#ifdef SWITCHAGG_X86
// GCC 12 warns of the registers that its own header leaves undefined on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#define WITH_AES __attribute__((target("avx512f,avx512bw,avx512vl,aes,vaes,prfchw")))
#endif

namespace switchagg {

#ifdef SWITCHAGG_X86

namespace {

constexpr size_t kVectors = 4;  // of one keystream at a time, so that rounds of independent blocks fill the pipeline
constexpr size_t kAhead = 512;  // words to prefetch ahead
constexpr size_t kWidth = kPadStep / kVectors;

WITH_AES inline __m128i next_key(__m128i key, __m128i mixed) {
  key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
  key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
  return _mm_xor_si128(key, mixed);
}

template <int Constant>
WITH_AES inline void next_keys(__m128i& even, __m128i& odd, AesKeys& keys, size_t at) {
  even = next_key(even, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(odd, Constant), 0xFF));
  _mm_store_si128(reinterpret_cast<__m128i*>(keys.rounds[at].data()), even);
  if (at + 1 == keys.rounds.size()) return;
  odd = next_key(odd, _mm_shuffle_epi32(_mm_aeskeygenassist_si128(even, 0), 0xAA));
  _mm_store_si128(reinterpret_cast<__m128i*>(keys.rounds[at + 1].data()), odd);
}

WITH_AES inline __m512i round_key(const AesKeys& keys, size_t round) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(keys.rounds[round].data())));
}

// Keystreams that begin with the given counter blocks, from the block on whose number is in each part of `count`.
template <size_t Streams>
WITH_AES inline void encrypt(const AesKeys& keys, const __m512i (&blocks)[2], __m512i& count, __m512i (&out)[2][kVectors]) {
  const __m512i swap = _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const __m512i four = _mm512_broadcast_i32x4(_mm_set_epi32(4, 0, 0, 0));
  for (size_t v = 0; v < kVectors; ++v) {
    const __m512i counter = _mm512_shuffle_epi8(count, swap);
    for (size_t s = 0; s < Streams; ++s) out[s][v] = _mm512_xor_si512(blocks[s], counter);
    count = _mm512_add_epi32(count, four);
  }
#pragma GCC unroll 16
  for (size_t round = 1; round < 14; ++round) {
    const __m512i k = round_key(keys, round);
    for (size_t s = 0; s < Streams; ++s)
      for (size_t v = 0; v < kVectors; ++v) out[s][v] = _mm512_aesenc_epi128(out[s][v], k);
  }
  const __m512i last_key = round_key(keys, 14);
  for (size_t s = 0; s < Streams; ++s)
    for (size_t v = 0; v < kVectors; ++v) out[s][v] = _mm512_aesenclast_epi128(out[s][v], last_key);
}

// The words at `from`, of which the last step of a packet lacks some.
template <bool Whole>
WITH_AES inline __m512i loaded(const void* from, __mmask16 mask) {
  return Whole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi32(mask, from);
}

// Adds keystreams to the words from `first` on. Signs: of one stream, `Minus` says which; of two, the first is added and the second taken
// away. Sums take the units of the processor that AES instructions leave idle; of odd words, weights are loaded from one word further.
template <size_t Streams, bool Minus, bool Weighs, bool Whole>
WITH_AES inline void combine(const __m512i (&streams)[2][kVectors], const uint32_t* words, size_t first, size_t end, uint32_t* to,
                             const std::array<const int32_t*, 2>& weights, __m512i (&sums)[2]) {
  const __m512i big = _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
  for (size_t v = 0; v < kVectors; ++v) {
    const size_t at = first + v * kWidth;
    if (!Whole && at >= end) break;
    const auto mask = static_cast<__mmask16>(Whole || end - at >= kWidth ? 0xFFFFu : (1u << (end - at)) - 1);
    const __m512i before = _mm512_shuffle_epi8(loaded<Whole>(words + at, mask), big);
    const __m512i one = _mm512_shuffle_epi8(streams[0][v], big);
    __m512i after = Minus ? _mm512_sub_epi32(before, one) : _mm512_add_epi32(before, one);
    if (Streams == 2) after = _mm512_sub_epi32(after, _mm512_shuffle_epi8(streams[1][v], big));
    if constexpr (Whole) {
      _mm512_storeu_si512(to + at, _mm512_shuffle_epi8(after, big));
    } else {
      _mm512_mask_storeu_epi32(to + at, mask, _mm512_shuffle_epi8(after, big));
    }
    if constexpr (Weighs) {
      const __m512i bare = Minus ? after : before, odd = _mm512_shuffle_epi32(bare, static_cast<_MM_PERM_ENUM>(0xF5));
      for (size_t s = 0; s < 2; ++s) {
        sums[s] = _mm512_add_epi64(sums[s], _mm512_mul_epi32(bare, loaded<Whole>(weights[s] + at, mask)));
        sums[s] = _mm512_add_epi64(sums[s], _mm512_mul_epi32(odd, loaded<Whole>(weights[s] + at + 1, mask)));
      }
    }
  }
}

template <size_t Streams, bool Minus, bool Weighs>
WITH_AES void pad(const AesKeys& keys, const uint8_t* const (&starts)[2], const uint32_t* words, size_t first, size_t end, uint32_t* to,
                  WeightedSums* weighted) {
  const std::array<const int32_t*, 2> weights = Weighs ? weighted->weights : std::array<const int32_t*, 2>{};
  __m512i blocks[2] = {}, sums[2] = {};
  for (size_t s = 0; s < Streams; ++s) {
    const __m512i start = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(starts[s])));
    blocks[s] = _mm512_xor_si512(start, round_key(keys, 0));
  }
  const int count = static_cast<int>(first / 4);
  __m512i counts = _mm512_set_epi32(count + 3, 0, 0, 0, count + 2, 0, 0, 0, count + 1, 0, 0, 0, count, 0, 0, 0);
  for (size_t i = first; i < end; i += kPadStep) {
    // Shared memory, which another processor has had: of this packet, or of the next one.
    for (size_t v = 0; v < kVectors; ++v) {
      if (Minus) {
        __builtin_prefetch(words + i + kAhead + v * kWidth);
      } else {
        __builtin_prefetch(to + i + kAhead + v * kWidth, 1);
      }
    }
    __m512i streams[2][kVectors];
    encrypt<Streams>(keys, blocks, counts, streams);
    if (end - i >= kPadStep) {
      combine<Streams, Minus, Weighs, true>(streams, words, i, end, to, weights, sums);
    } else {
      combine<Streams, Minus, Weighs, false>(streams, words, i, end, to, weights, sums);
    }
  }
  if constexpr (Weighs) {
    for (size_t s = 0; s < 2; ++s) {
      uint64_t parts[8];
      _mm512_storeu_si512(parts, sums[s]);
      for (const uint64_t part : parts) weighted->sums[s] += part;
    }
  }
}

template <size_t Streams, bool Minus>
void pad(const AesKeys& keys, const uint8_t* const (&starts)[2], const uint32_t* words, size_t first, size_t end, uint32_t* to,
         WeightedSums* weighted) {
  (weighted ? pad<Streams, Minus, true> : pad<Streams, Minus, false>)(keys, starts, words, first, end, to, weighted);
}

}  // namespace

bool has_aes_kernel() {
  static const bool has = chosen_level() == 2 && __builtin_cpu_supports("vaes") && __builtin_cpu_supports("aes");
  return has;
}

WITH_AES AesKeys expanded(std::span<const uint8_t, 32> key) {
  AesKeys keys;
  std::copy_n(key.begin(), 16, keys.rounds[0].begin());
  std::copy_n(key.begin() + 16, 16, keys.rounds[1].begin());
  __m128i even = _mm_load_si128(reinterpret_cast<const __m128i*>(keys.rounds[0].data()));
  __m128i odd = _mm_load_si128(reinterpret_cast<const __m128i*>(keys.rounds[1].data()));
  next_keys<0x01>(even, odd, keys, 2);
  next_keys<0x02>(even, odd, keys, 4);
  next_keys<0x04>(even, odd, keys, 6);
  next_keys<0x08>(even, odd, keys, 8);
  next_keys<0x10>(even, odd, keys, 10);
  next_keys<0x20>(even, odd, keys, 12);
  next_keys<0x40>(even, odd, keys, 14);
  return keys;
}

void pad_by_kernel(const AesKeys& keys, const uint8_t* plus, const uint8_t* minus, const uint32_t* words, size_t first, size_t end,
                   uint32_t* to, WeightedSums* weighted) {
  if (plus && minus) {
    pad<2, false>(keys, {plus, minus}, words, first, end, to, weighted);
  } else if (plus) {
    pad<1, false>(keys, {plus, nullptr}, words, first, end, to, weighted);
  } else {
    pad<1, true>(keys, {minus, nullptr}, words, first, end, to, weighted);
  }
}

#else

bool has_aes_kernel() { return false; }
AesKeys expanded(std::span<const uint8_t, 32>) { return {}; }
void pad_by_kernel(const AesKeys&, const uint8_t*, const uint8_t*, const uint32_t*, size_t, size_t, uint32_t*, WeightedSums*) {}

#endif

}  // namespace switchagg
