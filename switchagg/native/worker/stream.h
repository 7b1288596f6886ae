// The stream of one segment: the union's blocks, in order, cut into packets of K words. Encodes this rank's packets and
// decodes RESULTs in any order. tests/reference/stream.py is the reference implementation. No I/O.
//
// If a chunk holds NaN or Inf, packets come first that are reduced with OR: a bit for each of its elements that is +Inf or
// NaN, and one for each that is -Inf or NaN. Bounded sums go on with a refinement (refinement.h).
//
// With check words (check.h) the first packets are claims of the plan's exponents, and then a word for each element of a chunk that
// holds NaN or Inf: how many ranks have +Inf or NaN there, and in the upper half -Inf or NaN. They are added, as the rest is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "switchagg/native/worker/check.h"
#include "switchagg/native/worker/limbs.h"
#include "switchagg/native/worker/plan.h"
#include "switchagg/native/worker/refinement.h"

namespace switchagg {

// The weighted sum of a packet's words (check.h), formed as they are written or read.
struct WeighedPacket {
  const int32_t* weights;
  uint64_t sum = 0;
};

class Stream {
 public:
  // All have their RESULTs. `plan` is null for the no-op baseline, whose payloads are not touched, `marks` where there are none.
  Stream(const Call& call, const Plan* plan, const Sequence& sequence, const Marks* marks, uint32_t words);

  uint64_t packets() const { return claim_packets_ + special_packets_ + packets_; }
  bool is_or(uint64_t packet) const {
    if (call_.checked) return packet >= claim_packets_ && !call_.adds();
    return packet < special_packets_ || call_.op == ReduceOp::bit_or;
  }
  // With check words, and without a seal: all ranks send this packet.
  bool has_all(uint64_t packet) const {
    return packet < claim_packets_ ||
           (packet >= claim_packets_ + special_packets_ && !call_.sparse && call_.dtype != DType::raw);
  }
  bool wraps(uint64_t packet) const { return packet >= claim_packets_ && call_.wraps(); }
  // After all RESULTs: each exponent that was agreed on is some rank's.
  bool claims_hold() const { return claims_.hold(); }

  // True for packets of which encode() and decode() form the weighted sum.
  bool weighs(uint64_t packet) const;
  // Writes this rank's words of packet p; false: all its blocks there are zero, send a SKIP. `weighed`: only if it weighs them.
  bool encode(uint64_t packet, uint8_t* payload, WeighedPacket* weighed = nullptr);
  uint32_t used(uint64_t packet) const;  // words of packet p, at every rank; the others are zero
  // payload null: the sum is zero, or another rank reads it.
  void decode(uint64_t packet, const uint8_t* payload, WeighedPacket* weighed = nullptr);
  // So many bytes behind what encode() reads of full narrow lanes it prefetches; 0: the next of the input.
  void fetch(size_t bytes) { fetched_ = bytes; }
  // Of sealed sums: the rank that alone sends a packet; none: all ranks do.
  std::optional<uint32_t> owner(uint64_t packet) const;
  // The rank + 1 that alone reads a packet's sums; 0: more do.
  uint16_t reader(uint64_t packet) const;
  // Of bounded sums, after the last decode. It goes on before finish().
  Refinement& refinement() { return *refinement_; }
  // A sum in memory that workers share (shared_sums.h), in place of packets; of elements [from, from + count), which is asked for once.
  // True where the input is put as it is, and the others' shares alone: this rank's own is added up from its input.
  bool is_plain() const { return !call_.mask && !call_.memory; }
  const float* input(uint64_t element) const { return reinterpret_cast<const float*>(call_.in) + element; }
  void put(uint64_t from, uint64_t count, float* to);  // where it is not
  // Adds up all ranks' floats. Writes the result, and `to` for the others, that past the cache if `past`.
  void add(uint64_t from, uint64_t count, std::span<const float*> ranks, float* to, bool past);
  void take(uint64_t from, uint64_t count, const float* sum);
  void finish();  // after all RESULTs: writes refined elements, and those that no packet carried

 private:
  struct Run {  // consecutive elements of the tensor in one packet
    uint64_t element;
    uint32_t count;
    uint32_t at;  // lane index in the packet
    bool own;     // this rank has data here
  };
  // Consecutive elements of one chunk in a packet: `words` planes of `count` words each from `at` on. The planes hold limbs
  // from `limb` on: all of them, unless a single element's do not fit in a packet.
  struct Piece {
    uint64_t element;
    uint32_t count, at, words, limb;
    uint32_t chunk;  // its place in the sequence
  };
  std::pair<uint64_t, uint64_t> extent(uint64_t packet) const;
  uint32_t length(uint64_t packet) const;
  void runs_of(uint64_t packet, bool by_owner);
  template <typename F>
  void each_limb_piece(uint64_t packet, const uint8_t* tensor, F&& f) const;
  void cut_limbs();
  template <typename F>
  void each_own_part(const Piece& piece, F&& f) const;
  void note_small(const Piece& piece, const uint32_t* sums);
  void decode_large(const Piece& piece, const LimbGrid& grid, const uint32_t* sums);
  void finish_refined();
  bool encode_limbs(uint64_t packet, uint32_t* words);
  void decode_limbs(uint64_t packet, const uint32_t* words);
  void round(const LimbGrid& grid, uint32_t count, const uint32_t* words, size_t stride, uint8_t* out, bool nontemporal);
  uint32_t divisor() const { return call_.op == ReduceOp::avg ? call_.workers : 1; }
  int result_unit(const LimbGrid& grid) const;
  bool once(const LimbGrid& grid) const;
  void note_claims();
  void note_specials();
  size_t special_words() const;  // of a chunk
  double value(uint64_t element) const;
  void write_specials();
  void finish_zeros(uint64_t chunk);
  // The elements, with 0 for those that are not finite.
  template <typename T>
  const T* finite(const ChunkRange& range, const T* x, uint32_t count, std::vector<T>& copy) const;
  template <typename F>
  void each_run(const uint8_t* tensor, F&& f) const;
  template <typename F>
  void each_chunk(const Run& run, F&& f) const;
  template <typename F>
  void each_piece(const Run& run, F&& f) const;
  template <typename F>
  bool each_full(Scale<float> (Stream::*scale)(int) const, F&& f);
  bool narrow() const { return !call_.in_limbs() && call_.bits < 32; }
  void encode_narrow(uint32_t* words);
  void decode_narrow(const uint32_t* words);
  void encode_lanes(uint8_t* payload);
  void decode_lanes(const uint8_t* payload);
  const float* widened(const ChunkRange& range, uint64_t element, uint32_t count);
  const double* doubles(const ChunkRange& range, uint64_t element, uint32_t count);
  void saturate(uint64_t place, uint32_t count, const int32_t* narrow_lanes);
  void write_zeros(uint64_t element, uint64_t count);
  void remember(uint64_t element, uint64_t count);
  void forget(uint64_t element, uint64_t count);
  template <typename F>
  void out_bits(uint64_t place, F&& f) const;

  template <typename T>
  Scale<T> up(int exponent) const;
  template <typename T>
  Scale<T> down(int exponent) const;
  ScaleF carried(int exponent) const;
  int places() const { return (call_.bits == 64 ? 62 : 30) - headroom_; }  // s of wide lanes: a lane's unit is 2^(E - s)

  const Call& call_;
  const LaneKernels& kernels_;
  uint32_t words_;
  uint32_t lanes_per_packet_;
  bool no_op_ = false;
  bool nontemporal_ = false;  // as in the call, unless little of the result is written
  bool negative_zero_ = false;
  const Sequence& sequence_;
  uint64_t packets_ = 0;
  uint64_t claim_packets_ = 0, special_packets_ = 0;
  Claims claims_;
  std::vector<uint64_t> special_;       // chunks that hold NaN or Inf
  std::vector<uint32_t> own_specials_, specials_;  // two bits an element of these: all of +Inf, then all of -Inf
  std::vector<Piece> pieces_;
  std::vector<size_t> packet_ends_;  // in `pieces_`
  std::optional<Refinement> refinement_;
  std::map<uint64_t, std::pair<std::vector<uint32_t>, uint32_t>> parts_;  // elements of several packets: words, and how many
  size_t fetched_ = 0;                // by encode(), so many bytes behind what it reads
  uint32_t key_ = 0;                  // of the stochastic rounding
  int32_t top_ = 0;                   // largest lane value
  int headroom_ = 0;
  int top_exponent_ = 254;            // of the type's largest finite value
  std::vector<Run> runs_;
  std::vector<uint32_t> sums_;  // of narrow lanes: a packet's words
  std::vector<float> scales_;   // of a packet's chunks
  std::vector<int32_t> q_;      // lanes: of a packet, or of a chunk where they are narrow
  std::vector<int64_t> q64_;
  std::vector<float> wide_, finite_;
  std::vector<double> finite64_;
};

}  // namespace switchagg
