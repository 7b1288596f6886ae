// A coverage-guided fuzzer for the native parsers; see main.cpp. A target reads its input as choices and bytes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace fuzz {

// An input that never ends: after its last byte come zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint8_t u8() {
    if (left_ == 0) return 0;
    --left_;
    return *at_++;
  }
  uint16_t u16() { return static_cast<uint16_t>(u8() << 8 | u8()); }
  uint32_t u32() { return uint32_t{u16()} << 16 | u16(); }
  uint32_t below(uint32_t n) { return n > 256 ? u32() % n : u8() % n; }
  bool rarely() { return u8() >= 0xF0; }  // one byte in sixteen
  void fill(uint8_t* to, size_t bytes) {
    const size_t there = bytes < left_ ? bytes : left_;
    if (there) std::memcpy(to, at_, there);
    std::memset(to + there, 0, bytes - there);
    at_ += there;
    left_ -= there;
  }

 private:
  const uint8_t* at_;
  size_t left_;
};

struct Target {
  const char* name;
  void (*run)(Input&);
};
extern const Target kSlots, kFrames, kHub, kLink, kEngine;

inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// Memory of exactly so many bytes, so that a step past its end is seen.
class Exact {
 public:
  explicit Exact(size_t bytes) : at_(static_cast<uint8_t*>(std::malloc(bytes ? bytes : 1))), bytes_(bytes) {}
  ~Exact() { std::free(at_); }
  Exact(const Exact&) = delete;
  Exact& operator=(const Exact&) = delete;
  uint8_t* get() const { return at_; }
  size_t size() const { return bytes_; }

 private:
  uint8_t* at_;
  size_t bytes_;
};

inline volatile uint8_t sink;
inline void read_all(const uint8_t* at, size_t bytes) {
  uint8_t sum = 0;
  for (size_t i = 0; i < bytes; ++i) sum = static_cast<uint8_t>(sum + at[i]);
  sink = sum;
}

}  // namespace fuzz
