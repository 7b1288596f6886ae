// A count that one thread keeps and any thread may read.
#pragma once

#include <atomic>
#include <cstdint>

namespace switchagg {

class RelaxedCounter {
 public:
  void add(uint64_t n) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  void operator++() { add(1); }
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace switchagg
