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

constexpr size_t kHugePage = 2 << 20;

class SharedMemory {
 public:
  // Zeroed memory that this process can write, and others cannot if `read_only_to_others`. Throws std::system_error.
  static SharedMemory make(size_t bytes, bool read_only_to_others);

  // Maps memory of another process. Nothing if it is smaller than `bytes`, or could become so. Takes the descriptor.
  static std::optional<SharedMemory> map(Descriptor descriptor, size_t bytes, bool writable);

  // Puts the whole huge pages from byte `from` on, a multiple of them, into such pages if the kernel can (Linux 6.1): also with the
  // system's setting for shared memory `never`, not with `deny`.
  void use_huge_pages(size_t from) const;

  uint8_t* get() const { return memory_.get(); }
  size_t size() const { return memory_.get_deleter().bytes; }
  int descriptor() const { return descriptor_.get(); }
  void close_descriptor() { descriptor_.reset(); }

 private:
  Descriptor descriptor_;
  Mapping memory_;
};

// Shared memory that any thread can find by a pointer into it while the object lives. Ids are never reused.
class FindableMemory {
 public:
  // Read-only to others. None if `bytes` is 0 or the kernel has none, as under a limit on the size of files.
  explicit FindableMemory(size_t bytes);
  ~FindableMemory();
  FindableMemory(const FindableMemory&) = delete;
  FindableMemory& operator=(const FindableMemory&) = delete;
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

bool send_bytes(int socket, const void* data, size_t size, std::span<const int> descriptors);
bool receive_bytes(int socket, void* data, size_t size, std::span<Descriptor> descriptors, bool wait);

// One message with descriptors over a SOCK_SEQPACKET socket. send_message never blocks and returns whether it was sent.
// receive_message returns false at the end, and if there is no message or one of another size. It closes descriptors that
// `descriptors` has no room for, and blocks if `wait` is set and the socket blocks.
template <typename T>
bool send_message(int socket, const T& message, std::span<const int> descriptors) {
  return send_bytes(socket, &message, sizeof message, descriptors);
}
template <typename T>
bool receive_message(int socket, T& message, std::span<Descriptor> descriptors, bool wait = false) {
  return receive_bytes(socket, &message, sizeof message, descriptors, wait);
}

}  // namespace switchagg
