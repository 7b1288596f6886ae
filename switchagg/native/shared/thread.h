// Threads without signals, which are for the program's own threads.
#pragma once

#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace switchagg {

template <typename Function>
std::thread start_thread(Function&& function) {  // throws std::system_error
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } const blocked;
  return std::thread(std::forward<Function>(function));
}

// In a forked child, where the thread does not exist, nor the owner and waiters of the mutex and the condition: forgets it
// without joining. The old mutex and condition can be neither used nor destroyed, so new ones are made in their places.
inline void forget_thread(std::optional<std::thread>& thread, std::mutex& mutex, std::condition_variable& changed) {
  new (&mutex) std::mutex;
  new (&changed) std::condition_variable;
  if (thread) (void)new std::thread(std::move(*thread));
  thread.reset();
}

}  // namespace switchagg
