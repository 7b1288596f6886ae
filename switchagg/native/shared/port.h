// A port carries datagrams between an engine and the outside. The switch loop and the worker engine know this interface
// only, because a port may wrap another one.
//
//      engine  <->  [capture]  <->  [faults]  <->  [rate]  <->  UdpPort | HubPort | LinkPort
//
// Ownership: a Received view belongs to the port and is valid until its next receive(). The bytes of a Segment belong to
// the caller and must stay unchanged during send(). Ports that do not copy (LinkPort, HubPort) also need the words behind
// the header unchanged while a receiver may read them; the window rule guarantees that.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "switchagg/native/shared/wire.h"

namespace switchagg {

struct Endpoint {  // host byte order
  uint32_t ip = 0;
  uint16_t port = 0;
  uint16_t switch_port = 0;  // on Ethernet: 1 + the port of the switch that leads there; else 0
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

struct Segment {  // the UDP payload of one datagram to send
  const uint8_t* data;
  uint32_t size;
};

struct Received {  // the UDP payload of one datagram that came in, in two pieces: a SwitchAgg header, and its words
  const uint8_t* header;  // the first 16 bytes, or all of a shorter one
  uint32_t size;          // of both pieces
  Endpoint peer;
  const uint8_t* words;   // the rest

  static Received whole(const uint8_t* data, uint32_t size, Endpoint peer) {
    return {data, size, peer, data + (size < wire::kHeaderBytes ? size : wire::kHeaderBytes)};
  }
  void copy_to(uint8_t* to) const {
    const uint32_t first = size < wire::kHeaderBytes ? size : wire::kHeaderBytes;
    if (first) std::memcpy(to, header, first);
    if (size > first) std::memcpy(to + first, words, size - first);
  }
};

struct PortCounters {
  uint64_t packets_in = 0, bytes_in = 0, packets_out = 0, bytes_out = 0;  // datagrams and UDP payload bytes
  uint64_t receive_calls = 0, send_calls = 0;                           // system calls
  uint64_t refused = 0;       // sends or receives that the peer's host answered with "port unreachable"
  uint64_t send_errors = 0;   // datagrams that the kernel would not take

  PortCounters& operator+=(const PortCounters& o) {
    packets_in += o.packets_in;
    bytes_in += o.bytes_in;
    packets_out += o.packets_out;
    bytes_out += o.bytes_out;
    receive_calls += o.receive_calls;
    send_calls += o.send_calls;
    refused += o.refused;
    send_errors += o.send_errors;
    return *this;
  }
};

// Zeroed memory for rings of packets, in huge pages if the kernel has them: with small pages, processor and kernel would
// spend much of their time on address translation.
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

class Port {
 public:
  virtual ~Port() = default;

  // Blocks until something can be received, wake() is called, or `timeout_ns` has passed (negative: no limit).
  // Returns false after a timeout.
  virtual bool wait(int64_t timeout_ns) = 0;

  // Appends datagrams that have arrived, of one system call at most; never blocks.
  virtual void receive(std::vector<Received>& into) = 0;

  // Sends every segment, in order, to every destination.
  virtual void send(std::span<const Endpoint> to, std::span<const Segment> segments) = 0;

  // Allows the next wait() to poll for a short time before it sleeps. Worth its cost if few packets are in flight.
  virtual void set_busy_poll(bool) {}

  // Ends a wait() from any thread.
  virtual void wake() = 0;

  // In a forked child: closes the descriptors that it inherited.
  virtual void abandon() {}

  virtual Endpoint local() const = 0;
  virtual const PortCounters& counters() const = 0;

  // Returns zeroed memory from which the port sends with the fewest copies. Once, before the first send().
  virtual uint8_t* packet_memory(size_t bytes) {
    packet_memory_ = PacketMemory(bytes);
    return packet_memory_.get();
  }

 private:
  PacketMemory packet_memory_;
};

}  // namespace switchagg
