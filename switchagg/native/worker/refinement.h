// The last two steps of a bounded sum (docs/protocol.md, section 5). Ranks find the sums of first words that are small beside what
// these words cut off, agree on those to which no rank has added a large element, and add up the rest of their words. No I/O.
//
// Where one rank alone gets a sum, the others cannot look at it. Then ranks mark, before the stream, groups of elements in which
// all are large; sums in groups that no rank has marked are taken for small, and for 0.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "switchagg/native/worker/check.h"
#include "switchagg/native/worker/plan.h"
#include "switchagg/native/worker/sequence.h"

namespace switchagg {

// The least magnitude of an element beside which no sum of its chunk has to be refined.
double least_large(const Call& call, const LimbGrid& grid);

class Marks {
 public:
  // `sequence` has agreed on its ranges.
  Marks(const Call& call, const Sequence& sequence, uint32_t words);

  uint64_t packets() const { return (own_.size() + words_ - 1) / words_; }
  bool encode(uint64_t packet, uint8_t* payload) const { return store_words(own_, packet, words_, payload); }
  void decode(uint64_t packet, const uint8_t* payload) { load_words(marks_, packet, words_, payload); }
  // A bit for each of the 32 elements from number `first` of a chunk on, given its place in the sequence: in no marked group.
  uint32_t unmarked(uint32_t chunk, uint32_t first) const;

 private:
  static constexpr uint32_t kGroup = 32, kWords = (1u << kBoundedChunkShift) / kGroup / 32;  // elements; words of a chunk
  uint32_t large(const Call& call, uint64_t element, uint32_t count, double least);

  uint32_t words_;
  std::vector<uint32_t> own_, marks_;
  std::vector<uint32_t> at_;  // of each chunk of the sequence, its words in these, where it has some
  std::vector<float> wide_;
};

class Refinement {
 public:
  // `sequence` has agreed on its ranges. `marks`, unless null, have all their RESULTs.
  Refinement(const Call& call, const Sequence& sequence, const Marks* marks, uint32_t words);

  // The least magnitude of a float32's, float16's or bfloat16's sum that is not small.
  uint32_t least() const { return static_cast<uint32_t>(least_); }
  // Notes those of `count` sums from `element` on, in planes of `stride` words, that are small. They are of one chunk,
  // given its place in the sequence; values() returns this rank's elements there, null if they are zero. With marks, `sums`
  // may be null: another rank reads them, or they are 0.
  template <typename F>
  void note(uint32_t chunk, uint64_t element, uint32_t count, const uint32_t* sums, size_t stride, F&& values) {
    for (uint32_t i = 0; i < count; i += kFind)
      if (find(chunk, element + i, sums ? sums + i : nullptr, stride, std::min(kFind, count - i))) {
        const auto* x = values();
        keep(chunk, element + i, sums ? sums + i : nullptr, stride, x ? x + i : nullptr);
      }
  }

  // The ranges of these elements, reduced with OR: after all sums. There are none if no chunk has more than kFew small sums and
  // all words that their elements may have fit in a packet.
  uint64_t open_ranges();  // returns packets
  bool encode_ranges(uint64_t packet, uint8_t* payload) const { return store_words(own_ranges_, packet, words_, payload); }
  void decode_ranges(uint64_t packet, const uint8_t* payload) { load_words(ranges_, packet, words_, payload); }

  const std::vector<uint32_t>& ranges() const { return ranges_; }  // as agreed

  // The rest of their words, added up: after all ranges. With check words, claims of the elements that are not refined because
  // some rank's is large come first, and rank 0 never skips a packet.
  uint64_t open_rest();  // returns packets
  bool has_all(uint64_t packet) const { return packet < claim_packets_; }  // with check words: all ranks send it
  bool claims_hold() const { return claims_.hold(); }
  bool encode_rest(uint64_t packet, uint8_t* payload) const;
  void decode_rest(uint64_t packet, const uint8_t* payload);
  const std::vector<uint32_t>& elements() const { return elements_; }  // that are refined, in order

  // After all of these: calls f(grid, first, count, words) for the refined elements of each chunk, given their place among
  // elements(), and all words of their sums, in planes of `count`.
  template <typename F>
  void each_part(F&& f) const {
    std::vector<uint32_t> planes;
    for (const Part& part : parts_) {
      gather(part, planes);
      f(grid_of(part), part.first, part.count, planes.data());
    }
  }

 private:
  static constexpr uint32_t kChunk = 1u << kBoundedChunkShift, kFind = 1024, kGroup = 8;  // elements
  static constexpr uint32_t kFew = 64;  // small sums of a chunk of which this rank's elements are kept whatever they are
  static constexpr uint32_t kGroupWords = kChunk / kGroup / 32;  // of a chunk
  struct Word {  // small sums among the 32 elements from `element` on: all, those that are 0, those with a large element of this rank
    uint32_t element, small, zero, large;
  };
  struct Small {  // of a chunk that has small sums: their place in `sums_` and `noted_`
    uint32_t chunk;
    size_t begin, end, noted, noted_end;
    uint64_t sums, zeros;  // how many
    size_t groups_at(const Call& call) const { return call.exponent_words(); }
    size_t large_at(const Call& call) const { return groups_at(call) + (zeros ? kGroupWords : 0); }
    size_t range_words(const Call& call) const { return large_at(call) + (sums + 31) / 32; }
  };
  struct Noted {  // a small sum that may be refined: it is not zero, or this rank has added something
    uint32_t element;
    std::array<uint32_t, 3> sum;
    double x;
    bool zero() const { return (sum[0] | sum[1] | sum[2]) == 0; }
  };
  struct Part {  // a chunk's elements that are refined
    uint32_t chunk, rest, count;  // words more; elements
    size_t first, at;             // in `elements_`, in `rest_`
    size_t noted, noted_end;
  };
  uint32_t words_below(uint32_t chunk, int field) const;
  bool find(uint32_t chunk, uint64_t element, const uint32_t* sums, size_t stride, uint32_t count);
  template <typename T>
  void keep(uint32_t chunk, uint64_t element, const uint32_t* sums, size_t stride, const T* x);
  template <typename F>
  void each_chunk(F&& f) const;
  double large(uint32_t chunk) const { return least_large(call_, sequence_.grids()[chunk]); }
  uint32_t first_of(uint32_t chunk) const { return static_cast<uint32_t>(sequence_.chunk(chunk) << call_.chunk_shift()); }
  LimbGrid grid_of(const Part& part) const;
  void note_claims(const Small& small, const uint32_t* own, const uint32_t* ranges);
  uint32_t rest_of(uint32_t chunk, const uint32_t* ranges) const;
  uint32_t asked_of(const Small& small, const Word& word, const uint32_t* groups) const;
  void add_part(const Small& small, const uint32_t* ranges, uint32_t rest);
  template <typename F>
  void each_noted(const Part& part, F&& f) const;
  template <typename T>
  void write_rest(const Part& part, std::vector<T>& x);
  void gather(const Part& part, std::vector<uint32_t>& planes) const;

  const Call& call_;
  const Sequence& sequence_;
  const Marks* marks_;
  const LaneKernels& kernels_;
  uint32_t words_;
  bool wide_;  // float64
  int limb_bits_;
  int64_t least_;  // of sums that are not small; of wide ones, without their lowest word
  std::array<uint32_t, kFind / 32> small_{}, zero_{};  // as find() has left them
  uint32_t found_ = 0, found_of_ = 0;  // a bit for each of these words that is not 0; sums
  std::vector<Word> sums_;     // that are small
  std::vector<uint32_t> few_;  // noted so far, by place of the chunk in the sequence
  std::vector<Noted> noted_;
  bool whole_ = false;  // there are no ranges
  std::vector<uint32_t> own_ranges_, ranges_;
  Claims claims_;
  uint64_t claim_packets_ = 0;
  std::vector<Part> parts_;
  std::vector<uint32_t> elements_, own_rest_, rest_;  // words as they are in packets
  std::vector<float> x32_, left_;  // scratch
  std::vector<double> x64_;
};

}  // namespace switchagg
