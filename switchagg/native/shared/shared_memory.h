// Memory that two processes see, and the descriptors that carry it between them.
//
// The one who makes a SharedMemory may give its descriptor away over a UNIX socket. Seals keep it from shrinking under the
// other's feet (a read past the end would kill the reader), and, where asked for, from being written by anybody else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace switchagg {

class Descriptor {  // an open file, closed with it
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
  void reset();

 private:
  int fd_ = -1;
};

class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  // Zeroed memory that this process writes; with `read_only_to_others` nobody else can. Throws std::system_error.
  static SharedMemory make(size_t bytes, bool read_only_to_others);

  // What another process has made: nothing where it is smaller than `bytes`, or could become so. Takes the descriptor.
  static std::optional<SharedMemory> map(Descriptor descriptor, size_t bytes, bool writable);

  uint8_t* get() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return descriptor_.get(); }
  void close_descriptor() { descriptor_.reset(); }

 private:
  Descriptor descriptor_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Shared memory that is found by a pointer into it, for as long as the object lives. Ids are never used again. Any thread may
// ask.
class FindableMemory {
 public:
  FindableMemory() = default;
  explicit FindableMemory(size_t bytes);  // read-only to others; throws std::system_error
  // The same, or one without memory where there is none to be had, as under a limit on the size of files.
  static FindableMemory make_or_none(size_t bytes) noexcept;
  ~FindableMemory();
  FindableMemory(FindableMemory&& other) noexcept { *this = std::move(other); }
  FindableMemory& operator=(FindableMemory&& other) noexcept;
  uint8_t* get() const { return memory_.get(); }  // null: none

  struct Found {
    uint32_t id = 0;
    const uint8_t* begin = nullptr;
    size_t size = 0;
    int descriptor = -1;
    bool holds(const uint8_t* at, size_t bytes) const {
      return at >= begin && bytes <= size && static_cast<size_t>(at - begin) <= size - bytes;
    }
  };
  static std::optional<Found> find(const uint8_t* at, size_t bytes);
  static uint64_t generation();  // changes whenever one comes or goes

 private:
  uint32_t id_ = 0;
  SharedMemory memory_;
};

// One message with descriptors over a SOCK_SEQPACKET socket. send_message never blocks and returns whether it went.
// receive_message returns the bytes that came, 0 at the end, -1 where nothing is there or it is not well-formed; it
// closes descriptors that there is no room for, and waits where `wait` and the socket say so.
bool send_message(int socket, std::span<const uint8_t> bytes, std::span<const int> descriptors);
int receive_message(int socket, std::span<uint8_t> bytes, std::span<Descriptor> descriptors, bool wait = false);

}  // namespace switchagg
