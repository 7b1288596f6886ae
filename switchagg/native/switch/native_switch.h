// The switch that Python holds: a port, the devices round it, and the loop. Either on a UDP socket, with links, or on Ethernet.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "switchagg/native/switch/ether_port.h"
#include "switchagg/native/switch/fault_port.h"
#include "switchagg/native/switch/frame_port.h"
#include "switchagg/native/switch/hub_port.h"
#include "switchagg/native/switch/loop.h"
#include "switchagg/native/switch/pcap_port.h"
#include "switchagg/native/switch/queue_port.h"
#include "switchagg/native/switch/rate_port.h"
#include "switchagg/native/switch/slot_bindings.h"
#include "switchagg/native/shared/udp_port.h"

namespace switchagg {

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

struct CloseDescriptor {
  void operator()(const int* descriptor) const { ::close(*descriptor); }
};

// The socket, the devices round it, and the loop. Everything here may be called from any Python thread; no call waits for
// the loop with the GIL held, and none holds the loop's lock while it wants the GIL.
class NativeSwitch {
 public:
  explicit NativeSwitch(uint32_t capacity) : loop_(std::make_unique<SwitchLoop>(capacity)) {}

  ~NativeSwitch() {
    if (loop_->in_own_process()) {
      nanobind::gil_scoped_release released;
      close();
      return;
    }
    // A forked child: let go of the descriptors, leak what has the parent's thread and locks in it.
    if (port_) port_->abandon();
    static_cast<void>(loop_.release());
  }

  // Takes over `capture`, the descriptor of a file, whatever comes of it; -1: none.
  void open(const Address& address, int receive_buffer, bool offload, const std::optional<RateSettings>& rate,
            const std::optional<FaultSettings>& faults, int capture, bool links) {
    std::unique_ptr<const int, CloseDescriptor> file(capture >= 0 ? &capture : nullptr);
    UdpOptions options;
    options.bind = to_endpoint(address);
    options.receive_buffer = receive_buffer;
    options.offload = offload;
    without_gil([&] {
      auto udp = std::make_unique<UdpPort>(options);
      udp_ = udp.get();
      if (links) {
        auto hub = std::make_unique<HubPort>(std::move(udp));
        hub_ = hub.get();
        port_ = std::move(hub);
        loop_->with_table([](SlotTable& table) { table.share_records(); });
      } else {
        port_ = std::move(udp);
      }
      add_devices(rate, faults, file ? *file.release() : -1, false);
      loop_->start(*port_);
    });
  }

  // Between interfaces of this host, likewise; without any, between queues, of the ports named only: see feed().
  struct EthernetOptions {
    std::vector<InterfaceName> interfaces;
    bool queues = false;
    uint16_t udp_port = wire::kDefaultPort, controller_port = 0;
    int receive_buffer = 32 << 20;
  };
  void open_ethernet(const EthernetOptions& options, const std::optional<RateSettings>& rate,
                     const std::optional<FaultSettings>& faults, int capture) {
    std::unique_ptr<const int, CloseDescriptor> file(capture >= 0 ? &capture : nullptr);
    without_gil([&] {
      std::vector<uint16_t> ports;
      for (const InterfaceName& each : options.interfaces) ports.push_back(each.port);
      if (options.queues) {
        auto queues = std::make_unique<QueuePort>();
        queues_ = queues.get();
        port_ = std::move(queues);
      } else {
        auto frames = std::make_unique<FramePort>(options.interfaces, options.receive_buffer);
        frames_ = frames.get();
        port_ = std::move(frames);
      }
      add_devices(rate, faults, file ? *file.release() : -1, true);
      auto ether = std::make_unique<EtherPort>(std::move(port_), std::move(ports), options.udp_port, options.controller_port);
      ether_ = ether.get();
      port_ = std::move(ether);
      if (!queues_) loop_->start(*port_);
    });
  }

  // Of a switch between queues: what comes of a frame at a port, or of what other threads have left to be sent.
  std::vector<QueuePort::Packet> feed(Endpoint from, std::vector<uint8_t> frame) {
    if (!queues_) throw std::runtime_error("this switch is not between queues");
    if (from.place != 0) queues_->put(from, std::move(frame));
    loop_->turn(*port_);
    return queues_->taken();
  }

  // Where the workers of a job on Ethernet are, and its parent: of each, in the order of the job's, and last.
  struct Station {
    uint16_t port;
    uint64_t mac;
  };
  void add_job(JobAdmission job, const std::vector<Station>& stations) {
    std::vector<std::pair<Endpoint, uint64_t>> neighbours;
    for (size_t i = 0; i < stations.size(); ++i) {
      Endpoint& endpoint = i < job.workers.size() ? job.workers[i].endpoint : job.parent->endpoint;
      endpoint.place = EtherPort::place_of(stations[i].port);
      neighbours.emplace_back(endpoint, stations[i].mac);
    }
    loop_->with_table([&](SlotTable& table) { table.add_job(job); });
    for (const auto& [endpoint, mac] : neighbours) ether().set_neighbour(endpoint, mac);
    neighbours_[job.job] = std::move(neighbours);
  }
  void remove_job(uint16_t job) {
    loop_->with_table([&](SlotTable& table) { table.remove_job(job); });
    for (const auto& [endpoint, mac] : neighbours_[job]) ether().drop_neighbour(endpoint);
    neighbours_.erase(job);
  }

  void close() {
    loop_->stop();
    if (capture_) capture_->finish();
    if (hub_) hub_->end_links();
    if (port_) port_->abandon();
  }

  // In a forked child: lets go of the parent's descriptors.
  void abandon() {
    if (!loop_->in_own_process() && port_) port_->abandon();
  }

  SwitchLoop& loop() {
    if (!loop_->in_own_process()) throw std::runtime_error("this switch lives in the process that started it");
    return *loop_;
  }
  bool in_own_process() const { return loop_->in_own_process(); }
  const UdpPort& udp() const {
    if (!udp_) throw std::runtime_error("not open");
    return *udp_;
  }
  EtherPort& ether() {
    loop();
    if (!ether_) throw std::runtime_error("this switch is on a UDP port");
    return *ether_;
  }
  const FramePort* frames() const { return frames_; }
  std::string link_name() const { return hub_ ? hub_->name() : ""; }
  const RatePort* rate() const { return rate_; }
  const FaultPort* faults() const { return faults_; }
  const PcapPort* capture() const { return capture_; }

 private:
  // Round the port: the links' speed, faults, and a capture of what is left after them.
  void add_devices(const std::optional<RateSettings>& rate, const std::optional<FaultSettings>& faults, int capture,
                   bool frames) {
    if (rate) {
      RateSettings settings = *rate;
      settings.frames = frames;
      auto device = std::make_unique<RatePort>(std::move(port_), settings);
      rate_ = device.get();
      port_ = std::move(device);
    }
    if (faults) {
      auto device = std::make_unique<FaultPort>(std::move(port_), *faults);
      faults_ = device.get();
      port_ = std::move(device);
    }
    if (capture >= 0) {
      auto device = std::make_unique<PcapPort>(std::move(port_), capture, frames);
      capture_ = device.get();
      port_ = std::move(device);
    }
  }

  std::unique_ptr<Port> port_;  // closed but not destroyed by close(): its counters stay
  UdpPort* udp_ = nullptr;
  HubPort* hub_ = nullptr;
  FramePort* frames_ = nullptr;
  QueuePort* queues_ = nullptr;
  EtherPort* ether_ = nullptr;
  std::unordered_map<uint16_t, std::vector<std::pair<Endpoint, uint64_t>>> neighbours_;  // by job
  RatePort* rate_ = nullptr;
  FaultPort* faults_ = nullptr;
  PcapPort* capture_ = nullptr;
  std::unique_ptr<SwitchLoop> loop_;
};

}  // namespace switchagg
