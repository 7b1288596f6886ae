// Sealed sums (docs/protocol.md, section 15): the keys of a generation, and the pads of a rank. tests/reference/seal.py does the same.
//
// AES and HMAC are OpenSSL's: libcrypto is loaded when the first session is sealed. Where the processor has AES instructions for several
// blocks, pads are made by aes_kernel.h, at half of the time; each Seal compares a packet of them with libcrypto's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "switchagg/native/worker/aes_kernel.h"
#include "switchagg/native/worker/check.h"
#include "switchagg/native/worker/lane_kernels.h"

namespace switchagg {

using Nonce = std::array<uint8_t, 16>;

// Throws std::runtime_error where there is no libcrypto.
void require_crypto();
Nonce fresh_nonce();

class Seal {
 public:
  // `words`: K. `nonces`: those of all ranks, in order.
  Seal(std::span<const uint8_t> secret, std::span<const Nonce> nonces, uint32_t rank, uint32_t words);
  ~Seal();  // wipes the keys
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  // The first words of the keystream of weights; to be wiped after use.
  std::vector<uint32_t> secret_words(size_t count) const;
  // Writes check words behind a contribution's words, and all of them with this rank's pad to `to`. `alone`: no other rank adds to them.
  void add_pad(uint64_t packet_number, bool alone, const PacketCheck& check, const Digest& digest, uint8_t* words, uint8_t* to);
  // Takes the pad from a RESULT's words, which `owner` alone has sent; 0: or all ranks have. Returns the sums of what is left.
  PacketCheck::Sums take_pad(uint64_t packet_number, uint32_t owner, const PacketCheck& check, const uint8_t* payload, uint8_t* to);

 private:
  using Block = std::array<uint8_t, 16>;
  // The counter block that the pad of a rank begins with.
  static Block first_block(uint32_t rank, uint64_t packet_number);
  // to[i] = words[i] + plus[i] - minus[i] for the words of the keystreams from these blocks on; null: none.
  void pad_by_library(const Block* plus, const Block* minus, const uint32_t* words, uint32_t* to);
  struct Context;
  std::unique_ptr<Context> pads_;
  std::optional<AesKeys> pads_by_kernel_;
  std::array<uint8_t, 32> weights_key_;
  uint32_t rank_, ranks_;
  const LaneKernels& kernels_;
  std::vector<uint32_t> zeros_, first_, second_;
};

}  // namespace switchagg
