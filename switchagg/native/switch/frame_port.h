// Interfaces of this host as a Port of Ethernet frames, through packet sockets. A peer is a port of the switch
// (Endpoint::switch_port).
//
//      interface a -> ring (rx) -> port 1 --+
//      interface a <- socket (tx) <---------+-- sendmmsg: batches
//      kernel: interfaces come and go ------+-- netlink
//
// The kernel writes frames into a mapped ring (TPACKET_V2: in the blocks of TPACKET_V3 the last frames of a window would
// wait for a timer). Frames that are larger than a place of the ring are queued at the socket.
//
// Frames are received as a cable would carry them: with VLAN tags and checksums, super-frames split. Super-frames that
// cannot be split are dropped and counted as `refused`.
//
// An interface that goes down keeps its sockets. One that vanishes is opened again when the name is back. Meanwhile its
// frames are dropped and counted.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "switchagg/native/switch/concurrency.h"
#include "switchagg/native/switch/epoll.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

struct InterfaceName {
  uint16_t port;  // of the switch
  std::string name;
};

struct InterfaceCounters {
  RelaxedCounter packets_in, bytes_in, packets_out, bytes_out;
  RelaxedCounter send_errors;  // frames that the kernel did not accept
  RelaxedCounter too_large;    // of these, larger than the interface carries
  RelaxedCounter missed;       // frames that came while the socket's buffer was full
  RelaxedCounter split;        // super-frames that were cut up
  RelaxedCounter refused;      // super-frames that could not be
  RelaxedCounter downs;        // how often it went down or away
  std::atomic<bool> up{false};
};

class FramePort : public Port {
 public:
  FramePort(std::vector<InterfaceName> interfaces, int receive_buffer);  // throws std::system_error that names the interface
  ~FramePort() override;

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override { signal_wake_up(wake_up_.get()); }
  void abandon() override;
  Endpoint local() const override { return {}; }
  const PortCounters& counters() const override { return counters_; }

  size_t size() const { return interfaces_.size(); }
  const InterfaceName& name(size_t index) const;
  const InterfaceCounters& counters(size_t index) const;  // may be read by any thread

 private:
  struct Interface;
  struct Buffers;

  int open(Interface& interface);  // 0, or an errno
  void update_state(Interface& interface);
  void release(Interface& interface);
  void take(Interface& interface, std::vector<Received>& into);
  void take_large(Interface& interface, std::vector<Received>& into);
  struct Arrival;
  void pass(Interface& interface, const Arrival& arrival, std::vector<Received>& into);
  void send_run(Interface& interface, std::span<const Segment> frames);

  std::vector<std::unique_ptr<Interface>> interfaces_;
  std::vector<Interface*> by_port_;
  int receive_buffer_;
  Descriptor wake_up_, netlink_;
  Epoll epoll_;
  std::unique_ptr<Buffers> buffers_;
  size_t turn_ = 0;     // the interface that is read first
  uint32_t waits_ = 0;  // since the sockets were last polled
  bool changed_ = false;
  PortCounters counters_;
};

}  // namespace switchagg
