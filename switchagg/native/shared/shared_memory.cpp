#include "switchagg/native/shared/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace switchagg {
namespace {

constexpr size_t kMaxDescriptors = 4;

uint8_t* map_bytes(int fd, size_t bytes, bool writable) {
  void* at = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<uint8_t*>(at);
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

SharedMemory::~SharedMemory() {
  if (data_) munmap(data_, size_);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory SharedMemory::make(size_t bytes, bool read_only_to_others) {
  SharedMemory memory;
  memory.descriptor_ = Descriptor(memfd_create("switchagg", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = memory.descriptor_.get();
  if (fd < 0) fail("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail("ftruncate");
  memory.data_ = map_bytes(fd, bytes, true);
  if (!memory.data_) fail("mmap");
  memory.size_ = bytes;
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
  memory.data_ = map_bytes(fd, bytes, writable);
  if (!memory.data_) return std::nullopt;
  memory.size_ = bytes;
  return memory;  // the mapping keeps the memory without its descriptor
}

FindableMemory::FindableMemory(size_t bytes) {
  if (bytes == 0) return;
  memory_ = SharedMemory::make(bytes, true);
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  id_ = ++all.last_id;
  all.all.push_back({id_, memory_.get(), memory_.size(), memory_.descriptor()});
  ++all.generation;
}

FindableMemory FindableMemory::make_or_none(size_t bytes) noexcept {
  try {
    return FindableMemory(bytes);
  } catch (const std::exception&) {
    return {};
  }
}

FindableMemory::~FindableMemory() {
  if (id_ == 0) return;
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  std::erase_if(all.all, [this](const Found& found) { return found.id == id_; });
  ++all.generation;
}

FindableMemory& FindableMemory::operator=(FindableMemory&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(memory_, other.memory_);
  return *this;
}

std::optional<FindableMemory::Found> FindableMemory::find(const uint8_t* at, size_t bytes) {
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  for (const Found& found : all.all)
    if (found.holds(at, bytes)) return found;
  return std::nullopt;
}

uint64_t FindableMemory::generation() { return registry().generation.load(std::memory_order_acquire); }

bool send_message(int socket, std::span<const uint8_t> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t size = descriptors.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(c), descriptors.data(), size);
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    return sent == static_cast<ssize_t>(bytes.size());
  }
}

int receive_message(int socket, std::span<uint8_t> bytes, std::span<Descriptor> descriptors, bool wait) {
  iovec part{bytes.data(), bytes.size()};
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
  if (got < 0) return -1;
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
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return -1;
  return static_cast<int>(got);
}

}  // namespace switchagg
