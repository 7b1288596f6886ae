// A mutex that is handed over in the order of asking. A thread that locks it in a tight loop, as the packet loop does
// under a flood, cannot starve the others; nor they it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace switchagg {

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

}  // namespace switchagg
