// Copies of floats into records that other workers read. Where two workers' cores share no cache, a core that writes lines which the
// other has read waits for each of them, and writes faster past its cache; where they share one, through it (docs/performance.md,
// "Sums past the cache"). Virtual processors move at any time without notice, so now and then a piece is copied each way, and timed:
// of shares of two pieces and more, those of large sums of up to 16 workers.
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
  static constexpr uint64_t kPiece = 1 << 12;  // floats: long beside a look at the clock, and few enough for the nearest cache

  explicit SharedCopies(Clock clock) : clock_(clock) {}

  // Floats of a share of a unit, which `reader` adds up, from the share's `place` on: whole pieces, or its last floats.
  void copy(uint32_t reader, uint64_t place, const float* from, uint64_t count, float* to) {
    Reader& of = readers_[reader];
    for (uint64_t at = 0, n; at < count; at += n, place += n) {
      n = std::min(kPiece, count - at);
      if (place == 0) of.timed = of.shares++ % kEvery == 0;
      if (!of.timed || n < kPiece || place > kPiece) {
        write(from + at, n, to + at, of.past);
        continue;
      }
      const int64_t before = clock_();
      write(from + at, n, to + at, place > 0);
      const int64_t took = clock_() - before;
      if (place == 0) {
        of.through = took;
      } else {
        const bool past = of.through > kTimes * took;
        of.past = past == of.seen ? past : of.past;
        of.seen = past;
      }
    }
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
    int64_t through = 0;  // ns that the last timed piece took through the cache
    uint32_t shares = 0;
    bool timed = false;  // the present share
    bool past = false;   // as was seen twice in a row
    bool seen = false;   // the last time
  };
  void write(const float* from, uint64_t n, float* to, bool past) const {
    past ? kernels_.copy_nontemporal(from, n, to) : copy_words(to, from, n);
  }

  const Clock clock_;
  const LaneKernels& kernels_ = choose_lane_kernels();
  std::array<Reader, wire::kMaxWorkers> readers_{};
};

}  // namespace switchagg
