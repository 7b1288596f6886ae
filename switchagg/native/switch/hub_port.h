// The switch's port where workers of its own host may come through shared memory instead of UDP:
//
//      loop  <->  HubPort  <->  UdpPort  <->  kernel            workers anywhere
//                    ^---->  links (switchagg/native/shared/link.h)    workers of this host, attached by a UNIX socket
//
// A worker that has attached sends and receives as the UDP address that it has proven to own; the loop sees no difference.
// Only processes of the same user (and root's) may attach. A link ends when its worker closes the socket, dies, or writes
// nonsense into the rings; from then on its address is reached by UDP again.
//
// Attaching happens in wait(), on the loop's thread.
#pragma once

#include <sys/epoll.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "switchagg/native/shared/link.h"
#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/udp_port.h"

namespace switchagg {

class HubPort : public Port {
 public:
  explicit HubPort(std::unique_ptr<UdpPort> udp);  // throws std::system_error
  ~HubPort() override;
  HubPort(const HubPort&) = delete;
  HubPort& operator=(const HubPort&) = delete;

  const std::string& name() const { return name_; }  // of the UNIX socket, in the abstract namespace

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override;
  void abandon() override;
  void end_links();  // their workers see the end, also where a forked child still holds the sockets
  Endpoint local() const override { return udp_->local(); }
  const PortCounters& counters() const override;

 private:
  struct Link;

  bool something_to_take() const;
  int poll(std::span<epoll_event> events, int64_t timeout_ns);
  void listen_to(bool on);
  void admit();
  void greet(Link& link);
  bool attach(Link& link);
  void drop_marked();
  Link* find(Endpoint endpoint) const;
  bool place(Link& link, const Segment& segment);
  bool watch(int fd, void* tag);

  std::unique_ptr<UdpPort> udp_;
  std::string name_;
  Descriptor listener_, bell_, epoll_;
  std::vector<std::unique_ptr<Link>> links_;            // attached or about to
  std::unordered_map<uint64_t, Link*> by_endpoint_;     // attached
  size_t turn_ = 0;                                     // the link that is read first
  uint32_t waits_ = 0;                                  // since the sockets were last looked at
  bool udp_ready_ = false;
  bool precise_ = true;                                 // the kernel has epoll_pwait2
  int64_t deaf_until_ = 0;                              // no descriptor is free for a connection before; 0: listening
  std::vector<link::Entry> taken_;                      // whose headers the Received views show
  std::vector<Endpoint> remote_;
  FindableMemory::Found last_found_;
  uint64_t last_generation_ = 0;
  PortCounters shared_;
  mutable PortCounters total_;
};

}  // namespace switchagg
