// The plan: what this rank calls, which of its blocks are not zero, how large each chunk's largest value is. Plans are
// reduced with OR; tests/reference/plan.py does the same in Python. No I/O.
//
//      header:  fingerprint, its complement, policy          once a collective
//      rest:    bitmap (a bit a block), then exponents (one-hot, 256 or 2,048 bits a chunk; in limbs 128 or 256 of exact sums, 256 of bounded)
//                                                                                               once a segment
//
// The exponents of large segments in limbs of which zero blocks are skipped come later (sequence.h).
//
// Header and rest share one packet where the collective is one segment and both fit; else the header has a packet alone.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "switchagg/native/worker/deal.h"
#include "switchagg/native/worker/lane_kernels.h"

namespace switchagg {

enum class DType : uint8_t { f32 = 0, f64 = 1, f16 = 2, bf16 = 3, i32 = 4, i64 = 5, raw = 6 };
inline constexpr uint32_t kElementBytes[] = {4, 8, 2, 2, 4, 8, 4};  // by DType
// Others that Python names (worker_lib/plan.py) differ in their ranges only.
enum class Kind : uint8_t {
  allreduce = 0, broadcast = 1, allgather = 2, reduce_scatter = 3, barrier = 4, no_op = 5,
  gather = 7, scatter = 8, all_to_all = 9, allgatherv = 10, extremum = 11,
};
enum class ReduceOp : uint8_t { sum = 0, avg = 1, bit_or = 2 };

inline constexpr uint32_t kPlanHeaderWords = 12;
inline constexpr uint32_t kPlanVersion = 3;  // as in worker_lib/plan.py: ranks of another one are told so
inline constexpr int kNoExponent = -1;
// In place of a lane's bits: sums that are exact, and sums whose error is within the bound for each element by itself.
inline constexpr uint8_t kExact = 0, kBounded = 1;
inline constexpr uint32_t kBoundedChunkShift = 12;  // log2 of a chunk's elements
inline constexpr uint64_t kLeastDirected = 1 << 16;  // elements of a tensor whose contributions are directed

// The finite, non-zero elements of a chunk on all ranks: bounds on the exponent fields of the smallest and of the largest
// magnitude, kNoExponent where there are none. For lanes of a fixed width `highest` is exact; `lowest` is for exact sums only.
struct ChunkRange {
  int16_t lowest = kNoExponent, highest = kNoExponent;
  bool special = false;  // some element is NaN or Inf
};

// One rank's part in one collective. The tensor that is reduced has `count` elements; this rank holds elements
// [in_begin, in_end) of it (the others count as zero) and wants [out_begin, out_end). The buffers belong to the caller
// and must outlive the collective; `in` and `out` are the same or do not overlap.
struct Call {
  Kind kind = Kind::barrier;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::raw;
  uint8_t bits = 32;  // of a lane; or kExact, kBounded: each element in as many words as it needs
  uint8_t root = 0;
  bool sparse = false;
  uint32_t block = 64;      // elements
  uint64_t count = 0;
  uint64_t fingerprint_count = 0;  // elements of the rank's own input, as the caller sees it
  uint32_t shape_crc = 0;
  uint32_t workers = 1, rank = 0;
  uint32_t call_number = 0;    // of the collective in the generation
  uint32_t first_element = 0;  // of a segment, in the whole tensor, mod 2^32: for the stochastic rounding
  // Elements of the whole tensor that one rank reads: rank `reader` the first `part`, the next rank the next; 0: all read all.
  uint64_t part = 0;
  uint32_t reader = 0;
  // Of a move of all ranks' arrays, for each rank: the end of its words in the whole tensor; null: all words are the root's.
  const uint64_t* owner_ends = nullptr;
  bool directed = false;    // contributions to the stream name the rank that reads their sums
  uint64_t before = 0;      // of a segment, the elements before it in the whole tensor
  uint32_t policy = 0;      // rank 0's policy word
  bool pause = false;       // rank 0: all ranks stop after this collective, for a change of membership
  WeightChange weight{};    // rank 0: of a job in stripes
  bool withdrawn = false;   // called for another number of ranks: its header says so, and no rank carries it out
  // True for what the call leaves to the job's policy: skipping of zero blocks, and the block size. `auto_lanes`: the least
  // width of lanes that the policy may choose, or 0 if the call chooses.
  bool auto_zeros = false, auto_block = false;
  uint8_t auto_lanes = 0;
  const uint8_t* in = nullptr;
  uint64_t in_begin = 0, in_end = 0;
  uint8_t* out = nullptr;
  uint64_t out_begin = 0, out_end = 0;
  const uint32_t* mask = nullptr;  // a bit a block: 0 if it is zero here without being scanned; null: scan all
  // Error feedback, of float32, float16 and bfloat16: added to the input first. Afterwards it holds what was not sent of
  // their sum: nothing of what wide lanes and limbs round off, all of it outside `mask`. May not overlap the other buffers.
  float* memory = nullptr;
  uint32_t* union_out = nullptr;  // a bit a block: where zero blocks are skipped, gets the union
  bool nontemporal = false;  // the result exceeds the caches, and does not replace the input: write it with nontemporal stores
  bool checked = false;     // packets have check words (check.h)
  bool sealed = false;      // they are also padded (seal.h)
  bool sealed_job = false;  // so are those of other collectives, if this is the exchange of nonces
  bool disjoint = false;    // of exact moves: each word is one rank's; resolve_disjoint() sets it
  bool zero_fill = false;   // write zeros where no rank has data; otherwise leave these elements

  uint32_t element_bytes() const { return kElementBytes[static_cast<size_t>(dtype)]; }
  bool scaled() const { return op != ReduceOp::bit_or && dtype <= DType::bf16; }
  bool in_limbs() const { return bits <= kBounded; }
  uint32_t chunk_shift() const { return bits == 32 || bits == 64 ? 16 : bits == kBounded ? kBoundedChunkShift : 10; }
  uint64_t chunk() const { return uint64_t{1} << chunk_shift(); }
  uint64_t chunks() const { return scaled() ? (count + chunk() - 1) / chunk() : 0; }
  uint64_t blocks() const { return (count + block - 1) / block; }
  // Of a one-hot exponent, which for exact sums, and float64 in limbs, has its lowest bits cut off.
  uint32_t exponent_words() const { return (dtype == DType::f64 ? 64u : 8u) >> cut_exponent_bits(); }
  uint32_t cut_exponent_bits() const { return !in_limbs() ? 0 : dtype == DType::f64 ? 3 : bits == kExact ? 1 : 0; }
  uint32_t not_finite() const { return dtype == DType::f64 ? 2047 : 255; }
  // The words of a stream are added. If they are checked, so are those of exact moves, where each is one rank's.
  bool adds() const { return op != ReduceOp::bit_or || (checked && disjoint); }
  void resolve_disjoint();
  // Packets of one rank's words are sent by that rank alone.
  bool owned() const { return sealed && disjoint && (owner_ends || kind == Kind::broadcast || kind == Kind::scatter); }
  uint32_t owner(uint64_t element) const {
    return owner_ends ? static_cast<uint32_t>(std::upper_bound(owner_ends, owner_ends + workers, before + element) - owner_ends) : root;
  }
  // Words may overflow, which is what int32 sums do.
  bool wraps() const { return op != ReduceOp::bit_or && dtype == DType::i32 && bits == 32; }
  // The type in which elements are scaled: float64, or float32 where a memory is added; halves as they are.
  DType scanned_type() const { return memory ? DType::f32 : dtype; }
  bool has_marks() const { return directed && bits == kBounded; }
  bool exponents_apart() const { return in_limbs() && sparse && scaled() && chunks() > 32; }
  uint64_t rest_words() const {
    return (sparse ? (blocks() + 31) / 32 : 0) + (exponents_apart() ? 0 : chunks() * exponent_words());
  }

  // Elements a segment where the tensor is cut in segments of about `wanted` elements; a multiple of 32 blocks.
  uint64_t segment_elements(uint64_t wanted) const {
    const uint64_t step = 32 * static_cast<uint64_t>(block);
    return (wanted + step - 1) / step * step;
  }
  // Elements [from, from + length) as a collective of their own.
  Call segment(uint64_t from, uint64_t length) const;
  // With a memory: elements [element, element + n) of the input plus the memory. Halves are widened first.
  void add_memory(const LaneKernels& kernels, uint64_t element, size_t n, float* sum) const;
};

// The job's skip policy, a word in rank 0's headers. The RESULT of a header sets the policy of the next collective.
struct Policy {
  static constexpr uint32_t kValid = 1u << 31, kDense = 1u << 30, kBlock = (1u << 17) - 1, kMaxBlock = 65536;
  static constexpr uint32_t kLanesShift = 20, kLanes = 7;  // 0: the type's own, else 1, 2, 3, 4 for 8, 16, 32, 64 bits

  // An invalid word changes nothing.
  static bool valid(uint32_t word) {
    const uint32_t block = word & kBlock;
    return (word & kValid) && block >= 1 && block <= kMaxBlock && (word >> kLanesShift & kLanes) <= 4;
  }

  // Sets the fields that `call` leaves to the policy.
  static void resolve(Call& call, uint32_t word);
};

// Prefetches the beginning of a block. kFetched: blocks ahead.
constexpr size_t kFetched = 8;
inline void fetch_block(const uint8_t* at, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes && i < 512; i += 64) __builtin_prefetch(at + i);
}

// The first of `words` words from `at` on that is not zero, else `words`. Bitmaps of large tensors are mostly zeros.
inline uint64_t next_word(const uint32_t* bits, uint64_t at, uint64_t words) {
  for (constexpr uint64_t kTogether = 8; at + kTogether <= words; at += kTogether) {
    uint32_t any = 0;
    for (uint64_t i = 0; i < kTogether; ++i) any |= bits[at + i];
    if (any) break;
  }
  while (at < words && !bits[at]) ++at;
  return at;
}

// The first bit of `end` from `at` on that is set, else `end`.
inline uint64_t next_bit(const uint32_t* bits, uint64_t at, uint64_t end) {
  if (at >= end) return end;
  if (const uint32_t rest = bits[at / 32] >> at % 32) return std::min(end, at + static_cast<uint64_t>(std::countr_zero(rest)));
  const uint64_t words = (end + 31) / 32, word = next_word(bits, at / 32 + 1, words);
  return word == words ? end : std::min(end, word * 32 + static_cast<uint64_t>(std::countr_zero(bits[word])));
}

// Calls f(bit) for those of `end` bits that are set, in order.
template <typename F>
void each_bit(const uint32_t* bits, uint64_t end, F&& f) {
  const uint64_t words = (end + 31) / 32;
  for (uint64_t word = next_word(bits, 0, words); word < words; word = next_word(bits, word + 1, words))
    for (uint32_t rest = bits[word]; rest; rest &= rest - 1)
      if (const uint64_t at = word * 32 + static_cast<uint64_t>(std::countr_zero(rest)); at < end) f(at);
}

// The words of one packet of K words, of many that are cut into packets in order. Stores them, filled up with zeros; false: all
// are zero, send a SKIP. Loads them from a RESULT; null: all zero.
bool store_words(const std::vector<uint32_t>& all, uint64_t packet, uint32_t words, uint8_t* payload);
void load_words(std::vector<uint32_t>& all, uint64_t packet, uint32_t words, const uint8_t* payload);

// Calls f(block, from, to) for the parts of elements [from, to) that are in one block each.
template <typename F>
void each_block(const Call& call, uint64_t from, uint64_t to, F&& f) {
  for (uint64_t at = from, end; at < to; at = end) {
    const uint64_t b = at / call.block;
    end = std::min((b + 1) * call.block, to);
    f(b, at, end);
  }
}

// The largest finite magnitude, as bits, of elements [from, to), as far as the mask has them; for chunks that hold NaN or Inf.
uint64_t largest_finite(const Call& call, uint64_t from, uint64_t to);
// Sets the bit of an exponent field among a chunk's one-hot exponents.
void set_exponent(const Call& call, uint32_t* exponents, uint64_t field);
// The ranges that one-hot exponents of chunks tell.
std::vector<ChunkRange> ranges_of(const Call& call, const uint32_t* exponents, uint64_t chunks);

// Scans floats for the magnitudes that determine a chunk's exponents.
class Scanner {
 public:
  explicit Scanner(const Call& call) : call_(call), kernels_(choose_lane_kernels()) {}
  // Elements from `element` on, as `blocks` blocks of `length`; sets bits from `at` on for those that are not zero.
  void scan(uint64_t element, uint64_t blocks, uint64_t length, uint32_t* bits, uint64_t at);
  // Sets the one-hot exponents of what was scanned since the last note. `largest()` is called if some element is not finite.
  template <typename F>
  void note(uint32_t* exponents, F&& largest);
  bool negative_zero() const { return found_.negative_zero; }

 private:
  template <typename T>
  void widen(const Extremes<T>& e);
  void set_exponent(uint32_t* exponents, uint64_t magnitude) const;
  static uint64_t infinity_of(DType dtype);

  const Call& call_;
  const LaneKernels& kernels_;
  Extremes<uint64_t> found_;
  std::vector<float> sum_;  // of a few blocks, with a memory
};

template <typename F>
void Scanner::note(uint32_t* exponents, F&& largest) {
  const uint64_t infinity = infinity_of(call_.scanned_type());
  if (found_.largest >= infinity) {
    set_exponent(exponents, infinity);
    found_.largest = largest();
  }
  if (found_.largest != 0) set_exponent(exponents, found_.largest);
  if (call_.bits == kExact && found_.smallest < infinity) set_exponent(exponents, found_.smallest);
  found_ = {0, UINT64_MAX, found_.negative_zero};
}

// The header of a collective.
struct PlanHeader {
  static void encode(const Call& call, uint32_t words, uint8_t* payload);  // the header, zero padded
  // Returns a bit for each fingerprint word in which ranks differ. Sets the bits that differ, and rank 0's policy word.
  static uint32_t mismatch(const uint8_t* payload, uint32_t* difference, uint32_t* policy);
  static bool pauses(const uint8_t* payload);
  static WeightChange weight(const uint8_t* payload);
  static bool withdrawn(const uint8_t* payload);  // by any rank
  // With check words, which follow `words` others in a header: complements of those words that only rank 0 sets.
  static void protect(const Call& call, uint32_t words, uint8_t* payload);
  static bool is_protected(uint32_t words, const uint8_t* payload);
  static std::array<uint32_t, kPlanHeaderWords> words(const uint8_t* payload);
};

class Plan {
 public:
  Plan(const Call& call, uint32_t words, bool with_header);

  uint64_t packets() const { return packets_; }  // with a header: one
  // Scans up to `budget` more elements; true when all were scanned.
  bool scan(uint64_t budget);
  bool scanned() const { return scanned_; }
  // Writes packet p's words; false: all are zero, send a SKIP.
  bool encode(uint64_t packet, uint8_t* payload) const;
  uint32_t used(uint64_t packet) const { return static_cast<uint32_t>(std::min<uint64_t>(words_, own_.size() - packet * words_)); }
  void decode(uint64_t packet, const uint8_t* payload);  // null: all zero
  // After all RESULTs.
  const uint32_t* own_bitmap() const { return own_.data() + header_words_; }
  uint64_t own_blocks() const;  // of its bitmap
  const uint32_t* union_bitmap() const { return agreed_.data() + header_words_; }
  std::vector<ChunkRange> ranges() const;
  // Of this rank's chunks, where they are apart.
  const std::vector<uint32_t>& own_exponents() const { return exponents_; }
  const std::vector<uint32_t>& agreed() const { return agreed_; }
  std::vector<ChunkRange> own_ranges() const;  // of chunks whose exponents are in the plan
  bool negative_zero() const { return scanner_.negative_zero(); }

 private:
  void scan_range(uint64_t from, uint64_t to);
  void fetch_after(uint64_t block, uint64_t blocks);
  void note_exponent();

  const Call& call_;
  const LaneKernels& kernels_;
  uint32_t words_, header_words_;
  uint64_t bitmap_words_, packets_;
  std::vector<uint32_t> own_, agreed_;  // all plan words, host order
  uint64_t seen_ = 0, scanned_chunk_ = UINT64_MAX;
  uint64_t fetched_to_ = 0, fetched_ = 0;  // the first block not prefetched; how many were
  bool scanned_ = false;
  Scanner scanner_;
  std::vector<uint32_t> exponents_;
};

}  // namespace switchagg
