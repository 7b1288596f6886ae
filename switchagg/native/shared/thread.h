// Threads without signals, which are for the program's own threads.
#pragma once

#include <signal.h>

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

}  // namespace switchagg
