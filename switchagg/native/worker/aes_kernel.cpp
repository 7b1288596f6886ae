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
#define WITH_AES __attribute__((target("avx512f,avx512bw,avx512vl,aes,vaes")))
#endif

namespace switchagg {

#ifdef SWITCHAGG_X86

namespace {

constexpr size_t kVectors = 4;  // of one keystream at a time, so that rounds of independent blocks fill the pipeline
constexpr size_t kWidth = 16;  // words

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

// Blocks `first`, `first` + 1, ... of the keystreams that begin with the given counter blocks.
template <size_t Streams>
WITH_AES inline void encrypt(const AesKeys& keys, const __m512i (&blocks)[2], uint32_t first, __m512i (&out)[2][kVectors]) {
  const __m512i swap = _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const __m512i lanes = _mm512_set_epi32(3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0);
  const __m512i first_key = round_key(keys, 0);
  for (size_t v = 0; v < kVectors; ++v) {
    const __m512i count = _mm512_maskz_set1_epi32(0x8888, static_cast<int>(first + 4 * v));
    const __m512i counter = _mm512_shuffle_epi8(_mm512_add_epi32(count, lanes), swap);
    for (size_t s = 0; s < Streams; ++s) out[s][v] = _mm512_xor_si512(_mm512_or_si512(blocks[s], counter), first_key);
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

// Signs of the keystreams: of one, `Minus` says which; of two, the first is added and the second taken away.
template <size_t Streams, bool Minus>
WITH_AES void pad(const AesKeys& keys, const uint8_t* const (&starts)[2], const uint32_t* words, size_t n, uint32_t* to) {
  const __m512i big = _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
  __m512i blocks[2] = {};
  for (size_t s = 0; s < Streams; ++s)
    blocks[s] = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(starts[s])));
  for (size_t i = 0; i < n; i += kVectors * kWidth) {
    __m512i streams[2][kVectors];
    encrypt<Streams>(keys, blocks, static_cast<uint32_t>(i / 4), streams);
    for (size_t v = 0; v < kVectors; ++v) {
      const size_t at = i + v * kWidth;
      if (at >= n) break;
      const auto mask = static_cast<__mmask16>(n - at >= kWidth ? 0xFFFFu : (1u << (n - at)) - 1);
      __m512i x = _mm512_shuffle_epi8(_mm512_maskz_loadu_epi32(mask, words + at), big);
      const __m512i first = _mm512_shuffle_epi8(streams[0][v], big);
      x = Minus ? _mm512_sub_epi32(x, first) : _mm512_add_epi32(x, first);
      if (Streams == 2) x = _mm512_sub_epi32(x, _mm512_shuffle_epi8(streams[1][v], big));
      _mm512_mask_storeu_epi32(to + at, mask, _mm512_shuffle_epi8(x, big));
    }
  }
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

void pad_by_kernel(const AesKeys& keys, const uint8_t* plus, const uint8_t* minus, const uint32_t* words, size_t n, uint32_t* to) {
  if (plus && minus) {
    pad<2, false>(keys, {plus, minus}, words, n, to);
  } else if (plus) {
    pad<1, false>(keys, {plus, nullptr}, words, n, to);
  } else {
    pad<1, true>(keys, {minus, nullptr}, words, n, to);
  }
}

#else

bool has_aes_kernel() { return false; }
AesKeys expanded(std::span<const uint8_t, 32>) { return {}; }
void pad_by_kernel(const AesKeys&, const uint8_t*, const uint8_t*, const uint32_t*, size_t, uint32_t*) {}

#endif

}  // namespace switchagg
