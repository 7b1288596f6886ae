// Zeroed memory for rings of packets, in huge pages where the kernel has them: the processor and the kernel's copies walk
// it from end to end all the time, and with small pages much of that time goes into address translation.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace switchagg {

class PacketMemory {
 public:
  PacketMemory() = default;
  explicit PacketMemory(size_t bytes) {
    if (bytes == 0) return;
    constexpr size_t kHuge = size_t{2} << 20;
    const bool huge = bytes >= kHuge / 2;
    size_ = huge ? (bytes + kHuge - 1) / kHuge * kHuge : bytes;
    mapped_ = huge ? size_ + kHuge : size_;  // room to start at a multiple of a huge page
    map_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map_ == MAP_FAILED) throw std::bad_alloc();
    uintptr_t at = reinterpret_cast<uintptr_t>(map_);
    if (huge) at = (at + kHuge - 1) / kHuge * kHuge;
    data_ = reinterpret_cast<uint8_t*>(at);
    if (huge) madvise(data_, size_, MADV_HUGEPAGE);
  }
  ~PacketMemory() {
    if (map_) munmap(map_, mapped_);
  }
  PacketMemory(PacketMemory&& other) noexcept { *this = std::move(other); }
  PacketMemory& operator=(PacketMemory&& other) noexcept {
    std::swap(map_, other.map_);
    std::swap(mapped_, other.mapped_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }

  uint8_t* get() const { return data_; }

 private:
  void* map_ = nullptr;
  size_t mapped_ = 0, size_ = 0;
  uint8_t* data_ = nullptr;
};

}  // namespace switchagg
