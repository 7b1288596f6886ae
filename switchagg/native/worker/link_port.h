// A worker's port to a switch on its own host: packets through shared memory (switchagg/native/shared/link.h), by a link to
// each thread of the switch. Keeps the UDP socket of the admitted address bound, but does not use it.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "switchagg/native/shared/link.h"
#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/udp_port.h"

namespace switchagg {

// Connects to the switch whose UNIX socket has this name in the abstract namespace. Throws std::system_error if there is none, or
// if it is another user's.
Descriptor connect_to_switch(const std::string& name);

// Throws std::system_error: the switch has refused.
[[noreturn]] void fail_refused(const char* what);

class LinkPort : public Port {
 public:
  // Attaches to the switch. Throws as connect_to_switch(), and if it refuses, as it does unless it has admitted the address of
  // `udp` to this job with this token; the caller then keeps `udp`.
  LinkPort(std::unique_ptr<UdpPort>& udp, const std::string& name, Endpoint peer, uint16_t job, uint32_t token,
           const link::Shape& shape);

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;  // from packet_memory() only
  void set_busy_poll(bool yes) override { busy_poll_ = yes; }
  void wake() override { signal_wake_up(wake_up_.get()); }
  void abandon() override;
  Endpoint local() const override { return local_; }
  const PortCounters& counters() const override { return counters_; }
  uint8_t* packet_memory(size_t bytes) override;

 private:
  struct Region {
    uint32_t id;
    SharedMemory memory;
  };
  struct Link {  // to one thread of the switch
    Descriptor socket, bell;
    SharedMemory memory;
    link::Writer up;
    link::Reader down;
    std::vector<Region> regions;
  };
  uint32_t attach(const std::string& name, int udp, uint16_t job, uint32_t token);
  const SharedMemory* region(Link& link, uint32_t id);
  void publish(Link& link);
  void end();

  link::Shape shape_;
  Endpoint peer_, local_;
  std::unique_ptr<UdpPort> udp_;
  SharedMemory packets_;
  Descriptor wake_up_;
  std::vector<Link> links_;         // by thread
  std::vector<pollfd> waited_for_;  // the wake-up; then bell and socket of each link
  size_t turn_ = 0;                 // the link that is read first
  std::vector<link::Entry> taken_;
  bool busy_poll_ = false;
  bool ended_ = false;   // the switch closed a link; entries in the rings are still valid
  bool broken_ = false;  // nothing more is taken
  uint64_t waits_ = 0;   // only the driver's; other threads read counters_ between its waits
  PortCounters counters_;
};

}  // namespace switchagg
