// The switch's port for workers anywhere, by UDP, and for workers of its own host, through shared memory:
//
//      loop  <->  HubPort  <->  UdpPort  <->  kernel            workers anywhere
//                    ^---->  links (switchagg/native/shared/link.h)    workers of this host, attached by a UNIX socket
//
// Of several threads each has a hub, and a worker has a link to each.
//
// A link is for one worker of one job, which shows the address and the token by which it is admitted; the loop sees no
// difference. Only processes of the same user and of root may attach. A link ends when its worker closes the socket, dies, or
// writes invalid entries; UDP then reaches its address again.
//
// A worker whose job has shared slots (shared_slots.h) gets their memory instead of a link, and sends nothing here.
//
// Attaching happens in wait(), on the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "switchagg/native/shared/link.h"
#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/switch/epoll.h"
#include "switchagg/native/switch/slot_table.h"

namespace switchagg {

class HubPort : public Port {
 public:
  // True if a worker of a job has this address and token, and is not fenced. Called on the loop's thread.
  using Admits = std::function<bool(uint16_t job, Endpoint worker, uint32_t token)>;

  // The memory of a job's shared slots for such a worker; nothing where the job has none. Likewise.
  using Offers = std::function<std::optional<SharedSlotsOffer>(uint16_t job, Endpoint worker, uint32_t token)>;

  // `name`: of the UNIX socket, in the abstract namespace; `threads`: of the switch. Throws std::system_error.
  HubPort(std::unique_ptr<UdpPort> udp, Admits admits, Offers offers = {}, std::string name = random_name(), uint32_t threads = 1);
  ~HubPort() override;

  static std::string random_name();
  const std::string& name() const { return name_; }

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override { signal_wake_up(wake_up_.get()); }
  void abandon() override;
  void end_links();  // also if a forked child still holds the sockets
  Endpoint local() const override { return udp_->local(); }
  const PortCounters& counters() const override;

 private:
  struct Link;

  bool any_available() const;
  void set_accepting(bool on);
  void accept_links();
  bool attach(Link& link);
  bool offer_slots(Link& link, uint16_t job, Endpoint endpoint, uint32_t token);
  void drop_marked();
  Link* find(uint16_t job, Endpoint worker) const;
  bool write(Link& link, const Segment& segment);
  void send_of(uint16_t job, std::span<const Endpoint> to, std::span<const Segment> segments);

  std::unique_ptr<UdpPort> udp_;
  Admits admits_;
  Offers offers_;
  const std::string name_;
  const uint32_t threads_;
  Descriptor listener_, wake_up_;
  Epoll epoll_;
  std::vector<std::unique_ptr<Link>> links_;            // attached or about to
  std::unordered_map<uint64_t, Link*> by_worker_;       // attached
  size_t turn_ = 0;                                     // the link that is read first
  uint32_t waits_ = 0;                                  // since the sockets were last polled
  bool udp_ready_ = false;
  int64_t accept_paused_until_ = 0;                     // 0: accepting connections
  std::vector<link::Entry> taken_;                      // behind the headers of Received views
  std::vector<Endpoint> remote_;
  PortCounters shared_;
  mutable PortCounters total_;
};

}  // namespace switchagg
