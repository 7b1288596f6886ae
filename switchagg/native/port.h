// A port carries datagrams between an engine and the outside: the one interface that the switch loop and the worker
// engine know. A port may wrap another one (faults, capture), so the engines never ask what lies beneath.
//
//      engine  <->  [capture]  <->  [faults]  <->  UdpPort  <->  kernel
//
// Ownership: a Received view belongs to the port and is valid until its next receive(); the bytes behind a Segment
// belong to the caller and need to stay unchanged only during send().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace switchagg {

struct Endpoint {  // host byte order
  uint32_t ip = 0;
  uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

struct Segment {  // the UDP payload of one datagram to send
  const uint8_t* data;
  uint32_t size;
};

struct Received {  // the UDP payload of one datagram that came in
  const uint8_t* data;
  uint32_t size;
  Endpoint peer;
};

struct PortCounters {
  uint64_t packets_in = 0, bytes_in = 0, packets_out = 0, bytes_out = 0;  // datagrams and UDP payload bytes
  uint64_t receive_calls = 0, send_calls = 0;                           // system calls
  uint64_t refused = 0;       // sends or receives that the peer's host answered with "port unreachable"
  uint64_t send_errors = 0;   // datagrams that the kernel would not take
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

  // Ends a wait() from any thread.
  virtual void wake() = 0;

  // In a forked child: closes this process's copies of what the parent's port holds open.
  virtual void abandon() {}

  virtual Endpoint local() const = 0;
  virtual const PortCounters& counters() const = 0;
};

}  // namespace switchagg
