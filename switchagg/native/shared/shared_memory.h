// Memory that two processes share, and messages over UNIX sockets that carry its descriptor.
//
// Seals keep the memory from shrinking, because a read past its end would kill the reader, and, if asked for, from being
// written by other processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "switchagg/native/shared/descriptor.h"

namespace switchagg {

class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  // Zeroed memory that this process can write, and others cannot if `read_only_to_others`. Throws std::system_error.
  static SharedMemory make(size_t bytes, bool read_only_to_others);

  // Maps memory of another process. Nothing if it is smaller than `bytes`, or could become so. Takes the descriptor.
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

// Shared memory that any thread can find by a pointer into it while the object lives. Ids are never reused.
class FindableMemory {
 public:
  FindableMemory() = default;
  explicit FindableMemory(size_t bytes);  // read-only to others; throws std::system_error
  // The same, or an object without memory if none is available, as under a limit on the size of files.
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

// One message with descriptors over a SOCK_SEQPACKET socket. send_message never blocks and returns whether it was sent.
// receive_message returns the number of bytes, 0 at the end, -1 if there is no message or a malformed one. It closes
// descriptors that `descriptors` has no room for, and blocks if `wait` is set and the socket blocks.
bool send_message(int socket, std::span<const uint8_t> bytes, std::span<const int> descriptors);
int receive_message(int socket, std::span<uint8_t> bytes, std::span<Descriptor> descriptors, bool wait = false);

}  // namespace switchagg
