// Checked sums (docs/protocol.md, section 14): check words behind the words of a packet, claims of what plans say, digests of
// plans. No I/O. tests/reference/check.py is the reference implementation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "switchagg/native/worker/lane_kernels.h"

namespace switchagg {

// Of what ranks have agreed on, for each sum.
using Digest = std::array<uint64_t, 2>;

// The last words of a packet: a weighted sum of the others, as integers with a sign, and of the packet number and the digest of
// the plan, modulo 2^64, in parts of 24, 24 and 16 bits; and how many ranks have added to it, in the highest 8 bits. They add up
// as the words do. Of sealed packets there are two such sums, with weights that are secret.
class PacketCheck {
 public:
  static constexpr uint32_t kWords = 3, kSealedWords = 6;

  // Of packets of `words` words beside these, in a generation that is known by `nonce`.
  PacketCheck(uint32_t words, uint32_t workers, uint64_t nonce);
  // Of sealed packets, with secret_words() words of a keystream.
  PacketCheck(uint32_t words, uint32_t workers, std::span<const uint32_t> secret);
  uint32_t workers() const { return workers_; }
  PacketCheck(const PacketCheck&) = delete;
  PacketCheck& operator=(const PacketCheck&) = delete;
  ~PacketCheck();  // wipes the weights
  static size_t secret_words(uint32_t words) { return 2 * (2 + size_t{words}); }
  uint32_t words() const { return words_; }
  // Of each word of a packet, and one more; of check words it is 0.
  const int32_t* weights(size_t sum) const { return sums_[sum].weights.data(); }

  // Weighted sums of a packet's words from `first` on; the second is of sealed ones.
  struct Sums {
    std::array<uint64_t, 2> of{};
  };
  Sums weighted(const uint8_t* payload, size_t first = 0) const;

  // Extends the digest of what ranks have agreed on by more words of RESULTs.
  Digest extended(Digest before, std::span<const uint32_t> words) const;

  void write(uint64_t packet_number, const Digest& digest, const Sums& sums, uint8_t* payload) const;
  // True for a sum of such contributions by so many ranks; by one or more, if `from` is none. `wraps`: words may have overflowed;
  // then only the lower half of the sum counts.
  bool holds(uint64_t packet_number, const Digest& digest, const Sums& sums, const uint8_t* payload, std::optional<uint32_t> from,
             bool wraps) const;

 private:
  struct Sum {
    uint64_t point;  // at which digests are evaluated, under 2^61 - 1
    std::vector<int32_t> weights;
  };
  uint64_t bound(uint64_t packet_number, uint64_t digest) const;

  const LaneKernels& kernels_;
  uint32_t words_, workers_;
  uint64_t nonce_;
  std::vector<Sum> sums_;
};

// Counts, for bits that ranks have agreed on by OR, of how many ranks had set each: a switch that adds nothing makes none 0.
// They are packets of a stream, which every rank sends.
class Claims {
 public:
  void add(bool own);
  bool empty() const { return count_ == 0; }
  const std::vector<uint32_t>& words() const { return own_; }
  std::vector<uint32_t>& sums() { return sums_; }
  bool hold() const;

 private:
  static constexpr uint32_t kPerWord = 3, kBits = 10;
  size_t count_ = 0;
  std::vector<uint32_t> own_, sums_;
};

}  // namespace switchagg
