// A port carries datagrams between an engine and the outside. The switch loop and the worker engine know this interface
// only, because a port may wrap another one.
//
//      engine  <->  [capture]  <->  [faults]  <->  [rate]  <->  UdpPort | HubPort | LinkPort
//
// Ownership: a Received view belongs to the port and is valid until its next receive(). The bytes of a Segment belong to
// the caller and must stay unchanged during send(). Ports that do not copy (LinkPort, HubPort) also need the words behind
// the header unchanged while a receiver may read them; the window rule guarantees that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "switchagg/native/shared/descriptor.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg {

class SharedSums;

struct Endpoint {  // host byte order
  uint32_t ip = 0;  // an IPv4 address, or the number of an IPv6 address (ip_address.h)
  uint16_t port = 0;
  uint16_t switch_port = 0;  // on Ethernet: 1 + the port of the switch that leads there; else 0
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

struct Segment {  // the UDP payload of one datagram to send
  const uint8_t* data;
  uint32_t size;
  uint32_t used = UINT32_MAX;  // of a worker's packet: the words that the round uses at any rank; all others are zero
};

// ECN (RFC 3168). A packet's flags say whether its IP header is to be ECT(0), and take up CE from there. So what lies between
// ports and sockets knows the flags alone.
inline constexpr uint8_t kEcnFlags = wire::kFlagCe | wire::kFlagEct;
inline constexpr uint8_t kEct0 = 2, kCe = 3, kEcnMask = 3;  // in the IP header's second byte

inline uint8_t ecn_of(const Segment& packet) {
  return packet.size >= wire::kHeaderBytes && packet.data[wire::kFlagsOffset] & wire::kFlagEct ? kEct0 : uint8_t{0};
}
// Of a packet that came with CE, in memory of the port that received it.
inline void take_up_ce(const uint8_t* packet, uint32_t size) {
  if (size >= wire::kHeaderBytes) const_cast<uint8_t*>(packet)[wire::kFlagsOffset] |= kEcnFlags;
}

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
  uint64_t core_moves = 0;    // of the thread that waits, to a core with fewer workers

  PortCounters& operator+=(const PortCounters& o) {
    using C = PortCounters;
    for (uint64_t C::* each : {&C::packets_in, &C::bytes_in, &C::packets_out, &C::bytes_out, &C::receive_calls,
                               &C::send_calls, &C::refused, &C::send_errors, &C::core_moves})
      this->*each += o.*each;
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
    const size_t size = huge ? (bytes + kHuge - 1) / kHuge * kHuge : bytes;
    const size_t room = huge ? kHuge : 0;  // to start at a multiple of a huge page
    memory_ = map_memory(size + room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!memory_) throw std::bad_alloc();
    if (!huge) return;
    begin_ = -reinterpret_cast<uintptr_t>(memory_.get()) % kHuge;
    madvise(get(), size, MADV_HUGEPAGE);
  }
  uint8_t* get() const { return memory_.get() + begin_; }

 private:
  Mapping memory_;
  size_t begin_ = 0;
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

  // Nothing that is sent is lost: what has no RESULT waits for other workers, and need not be sent again.
  virtual bool reliable() const { return false; }

  // True if a SUM with this sequence number would be the last contribution to its round. Its words may then be given to complete().
  virtual bool is_last(uint32_t) const { return false; }
  // Contributes words that are not in packet memory, and adds up the first of them. The next send() gets the packet as any other, but
  // reads its header alone.
  virtual void complete(uint32_t, const uint8_t*, uint32_t) {}
  // Writes the words that complete() had for this sequence number to packet memory, to be sent to another switch.
  virtual void restore(uint32_t) {}

  // Memory in which the workers sum without slots; wait() also returns when this one can do something there. Null: they have none.
  virtual std::shared_ptr<SharedSums> sums() { return nullptr; }
  // Wakes the other workers, who may wait for what this one has done there.
  virtual void wake_others() {}
  // The job goes on without this worker.
  virtual bool fenced() const { return false; }

  // Ends a wait() from any thread.
  virtual void wake() = 0;

  // Several ports are waited for by one: what can be read when something has arrived at this one (-1: it is waited for alone),
  // and what of others lets its wait() return too.
  virtual int descriptor() const { return -1; }
  virtual void also_wait_for(std::vector<int>) {}

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
