// A port carries datagrams between an engine and the outside: the one interface that the switch loop and the worker
// engine know. A port may wrap another one (a rate, faults, capture), so the engines never ask what lies beneath.
//
//      engine  <->  [capture]  <->  [faults]  <->  [rate]  <->  UdpPort | HubPort | LinkPort
//
// Ownership: a Received view belongs to the port and is valid until its next receive(). The bytes behind a Segment belong
// to the caller. They must stay unchanged during send(), and where the port hands packets over without copying (LinkPort,
// HubPort), the words behind the header for as long as a receiver may want them, which the window rule sees to.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "switchagg/native/shared/memory.h"
#include "switchagg/native/shared/wire.h"

namespace switchagg {

struct Endpoint {  // host byte order
  uint32_t ip = 0;
  uint16_t port = 0;
  uint16_t place = 0;  // on Ethernet: 1 + the switch's port behind which it is; else 0
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

class Port {
 public:
  virtual ~Port() = default;

  // Blocks until something can be received, wake() is called, or `timeout_ns` has passed (negative: no limit).
  // Returns false after a timeout.
  virtual bool wait(int64_t timeout_ns) = 0;

  // Appends what has arrived, at most one system call's worth; never blocks. Nothing appended: nothing is there.
  virtual void receive(std::vector<Received>& into) = 0;

  // Sends every segment, in order, to every destination.
  virtual void send(std::span<const Endpoint> to, std::span<const Segment> segments) = 0;

  // Whether little is under way, so that what the next wait() waits for may well come before a sleep has paid.
  virtual void hurry(bool) {}

  // Ends a wait() from any thread.
  virtual void wake() = 0;

  // In a forked child: closes this process's copies of what the parent's port holds open.
  virtual void abandon() {}

  virtual Endpoint local() const = 0;
  virtual const PortCounters& counters() const = 0;

  // Zeroed memory, the port's own, from which packets leave with the fewest copies. Once, before the first send().
  virtual uint8_t* packet_memory(size_t bytes) {
    packet_memory_ = PacketMemory(bytes);
    return packet_memory_.get();
  }

 private:
  PacketMemory packet_memory_;
};

}  // namespace switchagg
