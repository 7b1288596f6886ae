// A set of descriptors that a port waits for, each with a tag. Functions throw std::system_error.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/descriptor.h"

namespace switchagg {

class Epoll {
 public:
  Epoll() : fd_(epoll_create1(EPOLL_CLOEXEC)) {
    if (!fd_) fail("epoll_create1");
  }
  // Returns false with errno set if the kernel refuses.
  bool try_watch(int fd, void* tag, uint32_t events = EPOLLIN) { return control(EPOLL_CTL_ADD, fd, tag, events); }
  void watch(int fd, void* tag, uint32_t events = EPOLLIN) {
    if (!try_watch(fd, tag, events)) fail("epoll_ctl");
  }
  bool change(int fd, void* tag, uint32_t events) { return control(EPOLL_CTL_MOD, fd, tag, events); }
  void drop(int fd) { epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }
  void close() { fd_.reset(); }

  // Returns the events, which it writes to `room`. A negative timeout is none.
  std::span<epoll_event> wait(std::span<epoll_event> room, int64_t timeout_ns) {
    const int size = static_cast<int>(room.size());
    int ready = -1;
    if (precise_) {
      const timespec limit = timespec_of(timeout_ns);
      ready = epoll_pwait2(fd_.get(), room.data(), size, timeout_ns < 0 ? nullptr : &limit, nullptr);
      precise_ = ready >= 0 || errno == EINTR;  // else before Linux 5.11, or in a sandbox that does not know the call
    }
    if (!precise_) {
      const int64_t ms = std::min<int64_t>((timeout_ns + 999999) / 1000000, 1000000);  // rounded up
      ready = epoll_wait(fd_.get(), room.data(), size, timeout_ns < 0 ? -1 : static_cast<int>(ms));
      if (ready < 0 && errno != EINTR) fail("epoll_wait");  // a loop would spin if it went on
    }
    return room.first(static_cast<size_t>(std::max(ready, 0)));
  }

 private:
  bool control(int what, int fd, void* tag, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = tag;
    return epoll_ctl(fd_.get(), what, fd, &event) == 0;
  }

  Descriptor fd_;
  bool precise_ = true;  // the kernel has epoll_pwait2
};

}  // namespace switchagg
