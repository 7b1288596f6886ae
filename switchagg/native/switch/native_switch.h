// The switch that Python holds: a port, the devices around it, and the loop, on a UDP socket or between Ethernet
// interfaces. Any Python thread may call it. No call waits for the loop while it holds the GIL, and none waits for the
// GIL while it holds the loop's lock.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "switchagg/native/shared/dpdk_device.h"
#include "switchagg/native/shared/frame_host.h"
#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/shared/xdp_device.h"
#include "switchagg/native/switch/ether_port.h"
#include "switchagg/native/switch/fault_port.h"
#include "switchagg/native/switch/frame_port.h"
#include "switchagg/native/switch/hub_port.h"
#include "switchagg/native/switch/pcap_port.h"
#include "switchagg/native/switch/queue_port.h"
#include "switchagg/native/switch/rate_port.h"
#include "switchagg/native/switch/shards.h"

namespace switchagg {

using Address = std::pair<std::string, uint16_t>;  // ("127.0.0.1", 48879)
Endpoint to_endpoint(const Address& address);      // raises UsageError if it is no IP address
[[noreturn]] void raise_usage_error(const char* message);  // switchagg.errors.UsageError

// Calls `function` without the GIL; a std::system_error becomes an OSError, which Python narrows by errno.
template <typename Function>
decltype(auto) without_gil(Function&& function) {
  try {
    nanobind::gil_scoped_release released;
    return function();
  } catch (const std::system_error& error) {
    nanobind::object value = nanobind::module_::import_("builtins").attr("OSError")(error.code().value(), error.what());
    PyErr_SetObject(value.type().ptr(), value.ptr());
    throw nanobind::python_error();
  }
}

class NativeSwitch {
 public:
  explicit NativeSwitch(uint32_t capacity, uint32_t threads = 1) : loops_(std::make_unique<Shards>(capacity, threads)) {}

  ~NativeSwitch() {
    if (loops_->in_own_process()) {
      nanobind::gil_scoped_release released;
      close();
      return;
    }
    // In a forked child: close the descriptors, and leak the loops, whose threads and locks are the parent's.
    abandon_ports();
    static_cast<void>(loops_.release());
  }

  // open() then takes packets through AF_XDP on the interface that has this address; and no links.
  std::string use_xdp(const std::string& address) {
    const Endpoint local = to_endpoint({address, 0});
    return without_gil([&] {
      std::string description;
      set_hosts(xdp_hosts(local.ip, static_cast<uint32_t>(loops_->size()), description));
      return description;
    });
  }

  // open() then takes packets from the process's DPDK ports, whose address this is; and no links.
  void use_dpdk(const std::string& address, const DpdkSettings& settings) {
    const Endpoint local = to_endpoint({address, 0});
    without_gil([&] { set_hosts(dpdk_hosts(local.ip, settings, static_cast<uint32_t>(loops_->size()))); });
  }

  // Takes over `capture`, the descriptor of a file or -1, even if this throws. Of several threads each has a socket of the
  // kernel's and links of its own, or queues of a device, and there are neither rates, faults nor a capture.
  void open(const Address& address, int receive_buffer, bool offload, const std::optional<RateSettings>& rate,
            const std::optional<FaultSettings>& faults, int capture, bool links) {
    Descriptor file(capture);
    const auto threads = static_cast<uint32_t>(loops_->size());
    UdpOptions options;
    options.bind = to_endpoint(address);
    options.receive_buffer = receive_buffer;
    options.offload = offload;
    options.share_address = threads > 1;
    options.show_strangers = static_cast<bool>(file);
    without_gil([&] {
      if (threads > 1 && (rate || faults || file)) throw std::logic_error("rates, faults and captures know one thread");
      for (uint32_t thread = 0; thread < threads; ++thread) {
        std::unique_ptr<UdpPort> udp;
        if (hosts_.empty() || hosts_[0]->device().shared_with_kernel()) {
          udp = std::make_unique<UdpPort>(options);
          if (threads > 1) udp->cut_at_blocks(wire::kBlockSlots);
          if (thread == 0) udp_ = udp.get();
          options.bind = udp->local();
        } else if (!options.bind.port) {
          options.bind.port = hosts_[0]->free_port();
        }
        std::unique_ptr<Port> port;
        if (hosts_.empty()) {
          port = with_links(std::move(udp), links);
        } else {
          port = std::make_unique<DatagramPort>(hosts_[thread], udp, options.bind, std::nullopt);
        }
        (thread == 0 ? port_ : others_.emplace_back()) = std::move(port);
      }
      if (udp_ && threads > 1) udp_->steer_by_slot(threads);
      add_devices(rate, faults, std::move(file), false);
      start();
    });
  }

  // The same between interfaces of this host: (port of the switch, name). With `queues` the switch has these ports but
  // opens nothing: frames pass through feed().
  void open_ethernet(const std::vector<std::pair<uint16_t, std::string>>& interfaces, bool queues, uint16_t udp_port,
                     uint16_t controller_port, int receive_buffer, const std::optional<RateSettings>& rate,
                     const std::optional<FaultSettings>& faults, int capture) {
    Descriptor file(capture);
    without_gil([&] {
      std::vector<uint16_t> ports;
      std::vector<InterfaceName> names;
      for (const auto& [port, name] : interfaces) {
        ports.push_back(port);
        names.push_back({port, name});
      }
      if (queues) {
        wrap(queues_, std::make_unique<QueuePort>());
      } else {
        wrap(frames_, std::make_unique<FramePort>(std::move(names), receive_buffer));
      }
      add_devices(rate, faults, std::move(file), true);
      wrap(ether_, std::make_unique<EtherPort>(std::move(port_), std::move(ports), udp_port, controller_port));
      if (!queues_) start();
    });
  }

  // Only with queues: returns what the switch sends because of a frame that arrives at a port, or because of what other
  // threads have left to be sent.
  std::vector<QueuePort::Packet> feed(Endpoint from, std::vector<uint8_t> frame) {
    if (!queues_) throw std::runtime_error("this switch is not between queues");
    if (from.switch_port != 0) queues_->put(from, std::move(frame));
    loops_->first().turn(*port_);
    return queues_->taken();
  }

  using Station = std::pair<uint16_t, uint64_t>;  // port of the switch, and MAC
  // `stations`: of each worker in the order of the job's, then of the parent.
  void add_job(JobAdmission job, const std::vector<Station>& stations) {
    std::vector<std::pair<Endpoint, uint64_t>> neighbours;
    for (size_t i = 0; i < stations.size(); ++i) {
      Endpoint& endpoint = i < job.workers.size() ? job.workers[i].endpoint : job.parent->endpoint;
      endpoint.switch_port = EtherPort::endpoint_port(stations[i].first);
      neighbours.emplace_back(endpoint, stations[i].second);
    }
    loops_->add_job(job);
    for (const auto& [endpoint, mac] : neighbours) ether().set_neighbour(endpoint, mac);
    neighbours_[job.job] = std::move(neighbours);
  }
  void remove_job(uint16_t job) {
    loops().remove_job(job);
    for (const auto& [endpoint, mac] : neighbours_[job]) ether().drop_neighbour(endpoint);
    neighbours_.erase(job);
  }

  void close() {
    loops_->stop();
    if (capture_) capture_->finish();
    for (HubPort* const hub : hubs_) hub->end_links();
    abandon_ports();
    set_hosts({});
  }

  // In a forked child: closes the parent's descriptors.
  void abandon() {
    if (!loops_->in_own_process()) abandon_ports();
  }

  Shards& loops() {
    if (!loops_->in_own_process()) throw std::runtime_error("this switch lives in the process that started it");
    return *loops_;
  }
  bool in_own_process() const { return loops_->in_own_process(); }
  const UdpPort* udp() const { return udp_; }  // nullptr on DPDK, and before open()
  Endpoint local() const { return port_ ? port_->local() : Endpoint{}; }
  uint32_t receive_buffer() const {
    if (const FrameHost::Hosts all = hosts(); !all.empty()) return all[0]->receive_bytes();
    return udp_ ? static_cast<uint32_t>(udp_->receive_buffer()) : 0;
  }
  FrameHost::Hosts hosts() const {  // none after close(), which another thread may be in
    std::lock_guard guard(hosts_lock_);
    return hosts_;
  }
  EtherPort& ether() {
    loops();
    if (!ether_) throw std::runtime_error("this switch is on a UDP port");
    return *ether_;
  }
  const FramePort* frames() const { return frames_; }
  std::string link_name() const { return hubs_.empty() ? "" : hubs_[0]->name(); }
  const RatePort* rate() const { return rate_; }
  const FaultPort* faults() const { return faults_; }
  const PcapPort* capture() const { return capture_; }

 private:
  void start() {
    std::vector<Port*> ports{port_.get()};
    for (const auto& other : others_) ports.push_back(other.get());
    loops_->start(ports);
  }
  void set_hosts(FrameHost::Hosts hosts) {
    std::lock_guard guard(hosts_lock_);
    hosts_.swap(hosts);  // those that were there end without the lock
  }
  void abandon_ports() {
    if (port_) port_->abandon();
    for (const auto& other : others_) other->abandon();
  }

  // The port of the next thread: `udp`, and where `links` says so also links to workers of this host.
  std::unique_ptr<Port> with_links(std::unique_ptr<UdpPort> udp, bool links) {
    if (!links) return udp;
    const auto thread = static_cast<uint32_t>(hubs_.size());
    SwitchLoop& loop = loops_->at(thread);
    loop.with_table([](SlotTable& table) { table.share_records(); });
    auto hub = std::make_unique<HubPort>(
        std::move(udp),
        [&loop](uint16_t job, Endpoint worker, uint32_t token) {
          return loop.with_table([&](const SlotTable& table) { return table.admits(job, worker, token); });
        },
        [&loop](uint16_t job, Endpoint worker, uint32_t token) {
          return loop.with_table([&](const SlotTable& table) { return table.offer(job, worker, token); });
        },
        thread ? link::name_of(hubs_[0]->name(), thread) : HubPort::random_name(), static_cast<uint32_t>(loops_->size()));
    hubs_.push_back(hub.get());
    return hub;
  }

  // Makes `made` the outermost port.
  template <typename Kind>
  void wrap(Kind*& kept, std::unique_ptr<Kind> made) {
    kept = made.get();
    port_ = std::move(made);
  }

  // Around the port: the rate of the links, then faults, then a capture of what passes these.
  void add_devices(const std::optional<RateSettings>& rate, const std::optional<FaultSettings>& faults,
                   Descriptor capture, bool frames) {
    if (rate) {
      RateSettings settings = *rate;
      settings.frames = frames;
      wrap(rate_, std::make_unique<RatePort>(std::move(port_), settings));
    }
    if (faults) wrap(faults_, std::make_unique<FaultPort>(std::move(port_), *faults));
    if (capture) wrap(capture_, std::make_unique<PcapPort>(std::move(port_), std::move(capture), frames));
  }

  std::unique_ptr<Port> port_;  // the first loop's; close() closes it but keeps it, with its counters
  std::vector<std::unique_ptr<Port>> others_;  // of the other loops
  mutable std::mutex hosts_lock_;
  FrameHost::Hosts hosts_;  // of the threads, on AF_XDP or DPDK
  UdpPort* udp_ = nullptr;
  std::vector<HubPort*> hubs_;  // by loop
  FramePort* frames_ = nullptr;
  QueuePort* queues_ = nullptr;
  EtherPort* ether_ = nullptr;
  std::unordered_map<uint16_t, std::vector<std::pair<Endpoint, uint64_t>>> neighbours_;  // by job
  RatePort* rate_ = nullptr;
  FaultPort* faults_ = nullptr;
  PcapPort* capture_ = nullptr;
  std::unique_ptr<Shards> loops_;
};

}  // namespace switchagg
