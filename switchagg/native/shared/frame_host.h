// A host on a frame device, with an IPv4 address, and its UDP endpoints as Ports. All endpoints of a process on one
// interface share the device:
//
//      engine <-> DatagramPort --+
//      engine <-> DatagramPort --+-- FrameHost <-> FrameDevice         headers, checksums, neighbours, ARP
//                      |
//                      +---- UdpPort <-> kernel                        where the device shares its interface with the kernel
//
// Headers are built and checked here, UDP checksums included. A neighbour's MAC is learned from its own datagrams, whether
// it is the peer or the router before it.
//
// Beside the kernel (AF_XDP) a port has a kernel's socket of the same endpoint too. Datagrams for peers that have not been heard
// for a second go through it, so that the kernel finds the way and resolves the address, and so do those that are larger than
// the interface carries; what the device leaves to the kernel, such as fragments, is received through it. Without the kernel (DPDK) the host asks and answers ARP itself, and
// answers echo requests.
//
// Of a switch with several threads each has a host of this address, with queues of its own. A neighbour's frames come to one of
// them, so what one learns it tells the others, a few times a second.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "switchagg/native/shared/frame.h"
#include "switchagg/native/shared/frame_device.h"
#include "switchagg/native/shared/udp_port.h"

namespace switchagg {

class DatagramPort;

struct HostCounters {
  uint64_t malformed = 0;    // dropped: not the datagram that its headers say, or a wrong checksum
  uint64_t unaddressed = 0;  // dropped: the MAC of the peer is not known
  uint64_t not_open = 0;     // dropped: for another address or port
  uint64_t too_large = 0;    // dropped: larger than the interface carries
  uint64_t no_room = 0;      // dropped by the device: earlier frames had not left

  HostCounters& operator+=(const HostCounters& o) {
    using C = HostCounters;
    for (uint64_t C::* each : {&C::malformed, &C::unaddressed, &C::not_open, &C::too_large, &C::no_room}) this->*each += o.*each;
    return *this;
  }
};

struct Neighbour {
  uint64_t mac = 0;
  uint16_t interface = 0;
  int64_t heard = 0;  // 0: never
};

// The neighbours that several hosts know, by address.
class SharedNeighbours {
 public:
  void expect(uint32_t ip) {
    std::lock_guard guard(lock_);
    all_.try_emplace(ip);
  }
  void put(uint32_t ip, const Neighbour& neighbour, bool expected_only) {
    std::lock_guard guard(lock_);
    if (!expected_only || all_.contains(ip)) all_[ip] = neighbour;
  }
  // Replaces what was heard before.
  void look(uint32_t ip, Neighbour& neighbour) {
    std::lock_guard guard(lock_);
    const auto found = all_.find(ip);
    if (found != all_.end() && found->second.heard > neighbour.heard) neighbour = found->second;
  }

 private:
  std::mutex lock_;
  std::unordered_map<uint32_t, Neighbour> all_;
};

class FrameHost {
 public:
  FrameHost(std::unique_ptr<FrameDevice> device, uint32_t ip, std::shared_ptr<SharedNeighbours> shared = {})
      : device_(std::move(device)), ip_(ip), shared_(std::move(shared)) {}

  // The hosts of this name in this process, one for each thread of a switch. They live as long as anybody has them. `make` makes
  // a thread's device, when those of the threads before it are there.
  using Hosts = std::vector<std::shared_ptr<FrameHost>>;
  using MakeDevice = std::function<std::unique_ptr<FrameDevice>(uint32_t thread, const Hosts& before)>;
  static Hosts named(const std::string& name, uint32_t ip, uint32_t threads, const MakeDevice& make);

  FrameDevice& device() { return *device_; }
  uint32_t ip() const { return ip_; }
  uint16_t free_port();            // of no endpoint that is open; another one each time
  uint32_t receive_bytes() const;  // of datagrams that can wait, as a socket's buffer is counted
  HostCounters counters();
  void abandon();

 private:
  friend class DatagramPort;
  struct NeighbourEntry {
    Neighbour neighbour;
    int64_t asked = 0;
    int64_t told = 0;  // to the other hosts
  };
  void add(DatagramPort& port);  // throws std::system_error: EADDRINUSE
  void remove(DatagramPort& port);
  void take(DatagramPort& port, std::vector<Received>& into);
  void on_frame(const DeviceFrame& frame, DatagramPort& taker, std::vector<Received>& into);
  void on_other(const DeviceFrame& frame);
  void ask(uint32_t ip, NeighbourEntry& entry, int64_t now);
  bool known(Endpoint to, int64_t now, Neighbour& found);
  size_t transmit(const DatagramPort& port, const Neighbour& neighbour, Endpoint to, std::span<const Segment> segments,
                  std::span<const uint64_t> sums);

  std::unique_ptr<FrameDevice> device_;
  const uint32_t ip_;
  const std::shared_ptr<SharedNeighbours> shared_;  // of several hosts, or nullptr
  bool abandoned_ = false;
  std::mutex lock_;  // of what is below, and of the device
  std::unordered_map<uint16_t, DatagramPort*> ports_;
  std::unordered_map<uint32_t, NeighbourEntry> neighbours_;
  std::vector<DeviceFrame> arrived_, unwanted_;
  HostCounters counters_;
  uint16_t last_port_ = 0;
};

class DatagramPort : public Port {
 public:
  // `udp`: the kernel's socket of the endpoint, or nullptr where the device does not share its interface. With a peer, only the
  // peer's datagrams are received. `largest`: bytes of the largest datagram. Throws std::system_error; the caller then keeps `udp`.
  DatagramPort(std::shared_ptr<FrameHost> host, std::unique_ptr<UdpPort>& udp, Endpoint local, std::optional<Endpoint> peer,
               uint32_t largest = 0);
  ~DatagramPort() override;

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void set_busy_poll(bool yes) override { busy_poll_ = yes; }
  void wake() override { signal_wake_up(wake_up_.get()); }
  void abandon() override;
  Endpoint local() const override { return local_; }
  const PortCounters& counters() const override;

 private:
  friend class FrameHost;
  struct Waiting {
    Received datagram;
    DeviceFrame frame;
  };

  std::shared_ptr<FrameHost> host_;  // nullptr after abandon()
  std::unique_ptr<UdpPort> udp_;
  const Endpoint local_;
  const std::optional<Endpoint> peer_;
  const int process_;
  Descriptor wake_up_;
  bool busy_poll_ = false, udp_ready_ = false;
  uint32_t waits_ = 0;  // since the sockets were last polled
  std::vector<uint64_t> sums_;
  PortCounters counters_;
  mutable PortCounters total_;

  // Under the host's lock.
  std::vector<Waiting> waiting_;    // which another port's thread took
  std::vector<DeviceFrame> held_;   // behind Received views
  std::atomic<bool> any_waiting_{false};
};

}  // namespace switchagg
