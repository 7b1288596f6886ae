#include "switchagg/native/shared/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace switchagg {
namespace {

constexpr size_t kMaxDescriptors = 4;

Mapping map_shared(int fd, size_t bytes, bool writable) {
  uint8_t* near = nullptr;
  if (bytes >= kHugePage) {  // at a multiple of their size, which huge pages need
    const Mapping room = map_memory(bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (room) near = room.get() + -reinterpret_cast<uintptr_t>(room.get()) % kHugePage;
  }
  return map_memory(bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, near);
}

struct Registry {
  std::mutex mutex;
  std::vector<FindableMemory::Found> all;
  uint32_t last_id = 0;
  std::atomic<uint64_t> generation{1};
};

Registry& registry() {
  static Registry* const only = new Registry;  // never destroyed: threads may still use it while the program ends
  return *only;
}

}  // namespace

SharedMemory SharedMemory::make(size_t bytes, bool read_only_to_others) {
  SharedMemory memory;
  memory.descriptor_ = Descriptor(memfd_create("switchagg", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = memory.descriptor_.get();
  if (fd < 0) fail("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail("ftruncate");
  memory.memory_ = map_shared(fd, bytes, true);
  if (!memory.memory_) fail("mmap");
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | (read_only_to_others ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) fail("F_ADD_SEALS");
  return memory;
}

std::optional<SharedMemory> SharedMemory::map(Descriptor descriptor, size_t bytes, bool writable) {
  struct stat state {};
  const int fd = descriptor.get();
  const int seals = fcntl(fd, F_GET_SEALS);
  if (bytes == 0 || seals < 0 || !(seals & F_SEAL_SHRINK)) return std::nullopt;
  if (fstat(fd, &state) != 0 || state.st_size < 0 || static_cast<size_t>(state.st_size) < bytes) return std::nullopt;
  SharedMemory memory;
  memory.memory_ = map_shared(fd, bytes, writable);
  if (!memory.memory_) return std::nullopt;
  return memory;  // the mapping keeps the memory without its descriptor
}

void SharedMemory::use_huge_pages(size_t from) const {
  const size_t bytes = (size() - from) / kHugePage * kHugePage;
  // The kernel collapses nothing where no page is.
  for (size_t at = from; at < from + bytes; at += kHugePage) std::atomic_ref<uint8_t>(memory_[at]).load(std::memory_order_relaxed);
  constexpr int kTries = 3;  // others may use a page just then
  for (int i = 0; i < kTries && madvise(get() + from, bytes, MADV_COLLAPSE) != 0 && errno == EAGAIN; ++i) {
  }
}

FindableMemory::FindableMemory(size_t bytes) {
  if (bytes == 0) return;
  try {
    memory_ = SharedMemory::make(bytes, true);
  } catch (const std::system_error&) {
    return;
  }
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  all.all.push_back({all.last_id + 1, memory_.get(), memory_.size(), memory_.descriptor()});
  id_ = ++all.last_id;
  ++all.generation;
}

FindableMemory::~FindableMemory() {
  if (id_ == 0) return;
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  std::erase_if(all.all, [this](const Found& found) { return found.id == id_; });
  ++all.generation;
}

std::optional<FindableMemory::Found> FindableMemory::find(const uint8_t* at, size_t bytes) {
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  for (const Found& found : all.all)
    if (found.holds(at, bytes)) return found;
  return std::nullopt;
}

uint64_t FindableMemory::generation() { return registry().generation.load(std::memory_order_acquire); }

bool send_bytes(int socket, const void* data, size_t size, std::span<const int> descriptors) {
  iovec part{const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t bytes = descriptors.size_bytes();
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(c), descriptors.data(), bytes);
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    return sent == static_cast<ssize_t>(size);
  }
}

bool receive_bytes(int socket, void* data, size_t size, std::span<Descriptor> descriptors, bool wait) {
  iovec part{data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  } while (got < 0 && errno == EINTR);
  if (got < 0) return false;
  size_t taken = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      Descriptor owned(fd);
      if (taken < descriptors.size()) descriptors[taken++] = std::move(owned);
    }
  }
  return got == static_cast<ssize_t>(size) && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
}

}  // namespace switchagg
