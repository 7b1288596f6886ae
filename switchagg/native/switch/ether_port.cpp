#include "switchagg/native/switch/ether_port.h"

#include <algorithm>
#include <cstring>

namespace switchagg {
namespace {

constexpr size_t kMadeBytes = 4 << 20;  // of frames that leave in one call
constexpr size_t kWaitingFrames = 4096;

uint64_t key(Endpoint e) { return uint64_t{e.ip} << 32 | uint64_t{e.port} << 16 | e.switch_port; }

}  // namespace

EtherPort::EtherPort(std::unique_ptr<Port> frames, std::vector<uint16_t> ports, uint16_t udp_port,
                     uint16_t controller_port)
    : frames_(std::move(frames)), ports_(std::move(ports)), udp_port_(udp_port), controller_port_(controller_port),
      made_(kMadeBytes) {
  for (const uint16_t port : ports_) leaving_[port];
  own_.port = udp_port;
}

void EtherPort::receive(std::vector<Received>& into) {
  arrived_.clear();
  frames_->receive(arrived_);
  std::lock_guard<FairMutex> guard(lock_);
  for (auto& [port, bytes] : waiting_) {
    const Bytes& kept = kept_.emplace_back(std::move(bytes));
    send_later(port, {kept.data(), static_cast<uint32_t>(kept.size())});
  }
  waiting_.clear();
  for (const Received& frame : arrived_) on_frame(frame, into);
  for (auto& [port, frames] : leaving_) send_run(port, frames);
  kept_.clear();
}

void EtherPort::on_frame(const Received& frame, std::vector<Received>& into) {
  const Segment whole{frame.header, frame.size};
  const FrameView view = parse_frame(whole.data, whole.size, udp_port_);
  const auto from = static_cast<uint16_t>(frame.peer.switch_port - 1);
  if (!forward(view, whole, from)) return;
  own_.mac = view.destination;
  own_.ip = view.ip_destination;
  if (view.ce) take_up_ce(view.payload, view.payload_bytes);
  into.push_back(Received::whole(view.payload, view.payload_bytes, {view.ip_source, view.udp_source, frame.peer.switch_port}));
  ++counters_.packets_in;
  counters_.bytes_in += view.payload_bytes;
}

bool EtherPort::forward(const FrameView& view, Segment frame, uint16_t from) {
  if (view.malformed) {
    ++ether_.malformed;
    return false;
  }
  if (tables_.is_own_source(view)) {
    ++ether_.own_source;
    return false;
  }
  switch (tables_.local(view)) {
    case LocalAction::admit:
      ++ether_.admitted;
      return true;
    case LocalAction::drop:
      ++ether_.local_dropped;
      return false;
    case LocalAction::answer_arp:
      if (const uint64_t* mac = tables_.arp(view.arp_target)) {
        ++ether_.answered_arp;
        answer_arp(kept_.emplace_back(frame.data, frame.data + frame.size).data(), *mac);
        send_later(from, {kept_.back().data(), frame.size});
      } else {
        ++ether_.unaddressed;
      }
      return false;
    case LocalAction::answer_echo:
      ++ether_.answered_echo;
      answer_echo(kept_.emplace_back(frame.data, frame.data + frame.size).data());
      send_later(from, {kept_.back().data(), frame.size});
      return false;
    case LocalAction::pass:
      break;
  }
  const StationAction action = tables_.station(view);
  if (action.kind == StationAction::forward) {
    if (action.to == from) {
      ++ether_.returned;
    } else {
      ++ether_.forwarded;
      send_later(action.to, frame);
    }
  } else if (action.kind == StationAction::flood) {
    ++ether_.flooded;
    if (const std::vector<uint16_t>* group = tables_.group(action.to))
      for (const uint16_t port : *group)
        if (port != from) send_later(port, frame);
  } else {
    ++ether_.unknown;
  }
  return false;
}

void EtherPort::send_later(uint16_t port, Segment frame) {
  if (injected_ && port == controller_port_) {
    injected_->returned.emplace_back(frame.data, frame.data + frame.size);
    return;
  }
  const auto found = leaving_.find(port);
  if (found == leaving_.end())
    ++ether_.no_such_port;
  else
    found->second.push_back(frame);
}

void EtherPort::send_run(uint16_t port, std::vector<Segment>& frames) {
  if (frames.empty()) return;
  const Endpoint to[] = {{0, 0, endpoint_port(port)}};
  frames_->send(to, frames);
  frames.clear();
}

void EtherPort::send(std::span<const Endpoint> to, std::span<const Segment> segments) {
  for (const Endpoint& endpoint : to) {
    UdpAddress peer{0, endpoint.ip, endpoint.port}, own;
    {
      std::lock_guard<FairMutex> guard(lock_);
      const auto found = neighbours_.find(key(endpoint));
      if (found == neighbours_.end()) {
        ether_.unaddressed += segments.size();
        continue;
      }
      peer.mac = found->second.mac;
      own = own_;
    }
    const auto port = static_cast<uint16_t>(endpoint.switch_port - 1);
    size_t used = 0;
    for (const Segment& segment : segments) {
      const uint32_t size = std::max(kUdpHeadersBytes + segment.size, kShortestFrame);
      if (used + size > kMadeBytes) {
        send_run(port, run_);
        used = 0;
      }
      uint8_t* const frame = made_.get() + used;
      write_udp_headers(frame, own, peer, segment.size, ecn_of(segment));
      std::memcpy(frame + kUdpHeadersBytes, segment.data, segment.size);
      if (kUdpHeadersBytes + segment.size < size)
        std::memset(frame + kUdpHeadersBytes + segment.size, 0, size - kUdpHeadersBytes - segment.size);
      run_.push_back({frame, size});
      used += (size + 7) & ~uint32_t{7};
      ++counters_.packets_out;
      counters_.bytes_out += segment.size;
    }
    send_run(port, run_);
  }
}

const PortCounters& EtherPort::counters() const {
  const PortCounters& below = frames_->counters();
  total_ = counters_;
  total_.receive_calls = below.receive_calls;
  total_.send_calls = below.send_calls;
  total_.send_errors = below.send_errors;
  return total_;
}

void EtherPort::set_neighbour(Endpoint endpoint, uint64_t mac) {
  std::lock_guard<FairMutex> guard(lock_);
  Neighbour& neighbour = neighbours_[key(endpoint)];
  neighbour.mac = mac;
  ++neighbour.jobs;
}

void EtherPort::drop_neighbour(Endpoint endpoint) {
  std::lock_guard<FairMutex> guard(lock_);
  const auto found = neighbours_.find(key(endpoint));
  if (found != neighbours_.end() && --found->second.jobs == 0) neighbours_.erase(found);
}

EtherCounters EtherPort::ether_counters() {
  std::lock_guard<FairMutex> guard(lock_);
  return ether_;
}

bool EtherPort::send_frame(uint16_t port, std::span<const uint8_t> frame) {
  {
    std::lock_guard<FairMutex> guard(lock_);
    if (!leaving_.contains(port) || waiting_.size() >= kWaitingFrames) {
      ++ether_.no_such_port;
      return false;
    }
    waiting_.emplace_back(port, Bytes(frame.begin(), frame.end()));
  }
  wake();
  return true;
}

EtherPort::Injected EtherPort::inject(std::span<const uint8_t> frame) {
  Injected made;
  {
    std::lock_guard<FairMutex> guard(lock_);
    const FrameView view = parse_frame(frame.data(), static_cast<uint32_t>(frame.size()), udp_port_);
    injected_ = &made;
    if (forward(view, {frame.data(), static_cast<uint32_t>(frame.size())}, controller_port_))
      made.admitted = Bytes(view.payload, view.payload + view.payload_bytes);
    injected_ = nullptr;
    // The loop sends what leaves by other ports.
    for (auto& [port, frames] : leaving_) {
      for (const Segment& each : frames) waiting_.emplace_back(port, Bytes(each.data, each.data + each.size));
      frames.clear();
    }
    kept_.clear();
  }
  wake();
  return made;
}

}  // namespace switchagg
