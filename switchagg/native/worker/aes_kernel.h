// Pads of sealed sums by the processor's AES instructions for four blocks at once (VAES with AVX-512): the keystreams of a packet are
// made in registers, where its words are added to them. libcrypto's AES serves other processors, and checks this one (seal.cpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace switchagg {

// Round keys of AES-256.
struct AesKeys {
  alignas(16) std::array<std::array<uint8_t, 16>, 15> rounds;
};

// Words of a keystream that are made at once.
constexpr size_t kPadStep = 64;

// False where the processor lacks the instructions, or SWITCHAGG_KERNELS names a lower set.
bool has_aes_kernel();
AesKeys expanded(std::span<const uint8_t, 32> key);

// Of the words of a packet before a pad is added, or after it is taken away.
struct WeightedSums {
  std::array<const int32_t*, 2> weights;  // of all words, and one more
  std::array<uint64_t, 2> sums{};
};

// to[i] = words[i] + plus[i] - minus[i], all of them big-endian, for words from `first`, a multiple of 4, to `end` of two keystreams in
// counter mode. `plus`, `minus`: their first counter blocks, of 16 bytes and with zeros in the last four; one that is null is of zeros.
// `weighted`: null, or sums of words[i], of to[i] where there is no plus; they cost next to nothing beside a keystream.
void pad_by_kernel(const AesKeys& keys, const uint8_t* plus, const uint8_t* minus, const uint32_t* words, size_t first, size_t end,
                   uint32_t* to, WeightedSums* weighted);

}  // namespace switchagg
