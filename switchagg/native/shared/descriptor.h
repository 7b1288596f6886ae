// Open files and mapped memory that go with their object, and wake-ups: eventfds that one thread signals and another one polls.
#pragma once

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <system_error>
#include <utility>

namespace switchagg {

[[noreturn]] inline void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// Asks for a socket buffer of so many bytes, past the system's limit if the process may. Returns the bytes that it got.
inline int enlarge_buffer(int fd, int option, int force, int bytes) {
  if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof bytes) != 0)
    setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes);
  int got = 0;
  socklen_t length = sizeof got;
  getsockopt(fd, SOL_SOCKET, option, &got, &length);
  return got / 2;  // the kernel doubles what it is asked for, for its own bookkeeping
}

struct Unmap {
  size_t bytes = 0;
  void operator()(uint8_t* at) const { munmap(at, bytes); }
};
using Mapping = std::unique_ptr<uint8_t[], Unmap>;

// Near `near` if that is free. Null with errno set if the kernel refuses.
inline Mapping map_memory(size_t bytes, int protection, int flags, int fd, uint8_t* near = nullptr) {
  void* const at = mmap(near, bytes, protection, flags, fd, 0);
  return at == MAP_FAILED ? Mapping() : Mapping(static_cast<uint8_t*>(at), Unmap{bytes});
}

inline Descriptor make_wake_up() {  // throws std::system_error
  Descriptor made(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!made) fail("eventfd");
  return made;
}

inline void signal_wake_up(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(fd, &one, sizeof one);
}

inline void clear_wake_up(int fd) {
  uint64_t count;
  [[maybe_unused]] const auto n = read(fd, &count, sizeof count);
}

}  // namespace switchagg
