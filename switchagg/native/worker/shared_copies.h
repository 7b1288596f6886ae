// Copies of words into records that other workers read. Where two workers' cores share no cache, a core that writes lines which the
// other has read waits for each of them, and writes faster past its cache; where they share one, through it (docs/performance.md,
// "Sums past the cache"). Virtual processors move at any time without notice, so now and then a piece is copied each way, and timed:
// of shares of two pieces and more, which large sums have, of up to 16 workers if they are of floats.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/slot_kernels.h"
#include "switchagg/native/shared/wire.h"
#include "switchagg/native/worker/lane_kernels.h"

namespace switchagg {

class SharedCopies {
 public:
  static constexpr uint64_t kPiece = 1 << 12;  // words at most: few enough for the nearest cache
  static constexpr uint64_t kLeast = 1 << 10;  // words of a piece that is timed: long beside a look at the clock

  explicit SharedCopies(Clock clock) : clock_(clock) {}

  // A share of a unit, which `reader` adds up. Copies of it follow, in order.
  void begin(uint32_t reader) {
    Reader& of = readers_[reader];
    of.timed = of.shares++ % kEvery == 0 ? 2 : 0;
  }
  // The next copy goes through the cache and is not timed: its words may be written where they belong, and not be copied.
  bool is_plain(uint32_t reader) const { return readers_[reader].timed == 0 && !readers_[reader].past; }
  void copy(uint32_t reader, const float* from, uint64_t count, float* to) {
    Reader& of = readers_[reader];
    for (uint64_t at = 0, n; at < count; at += n) {
      n = std::min(kPiece, count - at);
      if (of.timed == 2) of.piece = n;
      if (n < kLeast || n != of.piece) of.timed = 0;
      if (of.timed == 0) {
        write(from + at, n, to + at, of.past);
        continue;
      }
      const bool second = of.timed-- == 1;
      const int64_t before = clock_();
      write(from + at, n, to + at, second);
      const int64_t took = clock_() - before;
      if (!second) {
        of.through = took;
        continue;
      }
      const bool past = of.through > kTimes * took;
      if (past == of.seen) of.past = past;
      of.seen = past;
    }
  }
  void write(const float* from, uint64_t count, float* to, bool past) const {
    past ? kernels_.copy_nontemporal(from, count, to) : copy_words(to, from, count);
  }
  // For results, which all others read: a third of them are read so. Fewer may be measurements that contention spoiled.
  bool past() const {
    const auto past = std::ranges::count_if(readers_, &Reader::past);
    return past > 0 && 3 * past >= std::ranges::count_if(readers_, [](const Reader& each) { return each.shares > 0; });
  }
  void forget() { readers_ = {}; }  // who reads
  void flush() const { kernels_.flush(); }  // what was written past the cache is visible to the readers

 private:
  static constexpr uint32_t kEvery = 4;  // shares
  static constexpr int64_t kTimes = 2;    // measured: mostly one where a cache is shared, four and more where none is
  struct Reader {
    int64_t through = 0;  // ns that the last piece timed so took through the cache
    uint64_t piece = 0;   // words of that
    uint32_t shares = 0;
    int timed = 0;       // pieces of the present share that are still to be timed
    bool past = false;   // as was seen twice in a row
    bool seen = false;   // the last time
  };

  const Clock clock_;
  const LaneKernels& kernels_ = choose_lane_kernels();
  std::array<Reader, wire::kMaxWorkers> readers_{};
};

}  // namespace switchagg
