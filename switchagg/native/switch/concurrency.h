// A mutex and a counter for state that the packet loop shares with other threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace switchagg {

// A mutex that serves threads in the order of asking, so that a packet loop under a flood does not starve others.
class FairMutex {
 public:
  void lock() {
    std::unique_lock<std::mutex> guard(mutex_);
    const uint64_t ticket = next_++;
    turn_.wait(guard, [&] { return serving_ == ticket; });
  }
  void unlock() {
    bool waited_for;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      waited_for = ++serving_ != next_;
    }
    if (waited_for) turn_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable turn_;
  uint64_t next_ = 0, serving_ = 0;
};

// A counter that one thread writes and any thread may read.
class RelaxedCounter {
 public:
  void add(uint64_t n) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  void operator++() { add(1); }
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace switchagg
