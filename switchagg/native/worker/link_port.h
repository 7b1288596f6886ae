// A worker's port to a switch on its own host: packets through shared memory (switchagg/native/shared/link.h). The UDP socket by
// whose address the worker was admitted stays bound beneath, unused.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchagg/native/shared/link.h"
#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/udp_port.h"

namespace switchagg {

class LinkPort : public Port {
 public:
  // Attaches to the switch whose UNIX socket has this name in the abstract namespace. Throws std::system_error where
  // there is none, or it refuses; `udp` is then still the caller's.
  LinkPort(std::unique_ptr<UdpPort>& udp, const std::string& name, Endpoint peer, const link::Shape& shape);
  LinkPort(const LinkPort&) = delete;
  LinkPort& operator=(const LinkPort&) = delete;

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;  // from packet_memory() only
  void hurry(bool yes) override { hurried_ = yes; }
  void wake() override;
  void abandon() override;
  Endpoint local() const override { return local_; }
  const PortCounters& counters() const override { return counters_; }
  uint8_t* packet_memory(size_t bytes) override;

 private:
  struct Region {
    uint32_t id;
    SharedMemory memory;
  };
  const SharedMemory* region(uint32_t id);
  void end();

  link::Shape shape_;
  Endpoint peer_, local_;
  std::unique_ptr<UdpPort> udp_;
  SharedMemory memory_;
  Descriptor socket_, bell_, switch_bell_;
  link::Writer up_;
  link::Reader down_;
  std::vector<Region> regions_;
  std::vector<link::Entry> taken_;
  bool hurried_ = false;
  bool ended_ = false;   // the switch has closed the link; what is in the ring can still be taken
  bool broken_ = false;  // nothing more is
  uint64_t waits_ = 0;   // the driver's own; counters_ are read by others, between its waits
  PortCounters counters_;
};

}  // namespace switchagg
