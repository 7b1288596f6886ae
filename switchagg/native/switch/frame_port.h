// The interfaces of this host as a Port of whole Ethernet frames, through packet sockets: a peer is a port of the switch, its
// number in Endpoint::place.
//
//      interface a -> ring (rx) -> port 1 --+
//      interface a <- socket (tx) <---------+-- sendmmsg: batches
//      kernel: interfaces come and go ------+-- netlink
//
// The kernel writes frames into a ring that is mapped here (TPACKET_V2: with blocks, as of TPACKET_V3, the last frames of
// a window would wait for a timer). One that is larger than a place of the ring is queued at the socket besides.
//
// Frames come as they would on a cable: with their VLAN tags and checksums, super-frames cut up (super_frame.h). Those of
// a kind that cannot be cut are dropped and counted as `refused`.
//
// An interface that goes down keeps its sockets and works again when it is up; one that vanishes is opened anew when there
// is one of its name. Meanwhile its frames are dropped and counted.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "switchagg/native/switch/relaxed_counter.h"
#include "switchagg/native/shared/memory.h"
#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_memory.h"

namespace switchagg {

struct InterfaceName {
  uint16_t port;  // of the switch
  std::string name;
};

struct InterfaceCounters {
  RelaxedCounter packets_in, bytes_in, packets_out, bytes_out;
  RelaxedCounter send_errors;  // frames that the kernel would not take
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
  FramePort(const FramePort&) = delete;
  FramePort& operator=(const FramePort&) = delete;

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override;
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
  void look(Interface& interface);
  void release(Interface& interface);
  void take(Interface& interface, std::vector<Received>& into);
  void take_large(Interface& interface, std::vector<Received>& into);
  struct Arrival;
  void pass(Interface& interface, const Arrival& arrival, std::vector<Received>& into);
  void send_run(Interface& interface, std::span<const Segment> frames);
  void watch(int fd, void* tag);

  std::vector<std::unique_ptr<Interface>> interfaces_;
  std::vector<Interface*> by_port_;
  int receive_buffer_;
  Descriptor bell_, netlink_, epoll_;
  std::unique_ptr<Buffers> buffers_;
  size_t turn_ = 0;     // the interface that is read first
  uint32_t waits_ = 0;  // since the sockets were last looked at
  bool changed_ = false;
  PortCounters counters_;
};

}  // namespace switchagg
