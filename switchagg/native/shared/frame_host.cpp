#include "switchagg/native/shared/frame_host.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/link.h"

namespace switchagg {
namespace {

constexpr int64_t kSilentNs = 1'000'000'000;  // after which a neighbour is looked for again
constexpr int64_t kTellNs = 200'000'000;      // between two times that the other hosts are told
constexpr int64_t kAskNs = 20'000'000;        // between two ARP requests for a neighbour
constexpr size_t kMaxWaiting = 512;           // datagrams that wait for a port
constexpr size_t kMaxNeighbours = 4096;
constexpr uint32_t kPollEvery = 16;           // a busy port polls its sockets in one wait() of so many
constexpr uint16_t kFirstFreePort = 49152;    // of those that RFC 6335 leaves to everybody
constexpr uint32_t kAccounted = 2048;         // bytes that a frame which waits counts for

}  // namespace

FrameHost::Hosts FrameHost::named(const std::string& name, uint32_t ip, uint32_t threads, const MakeDevice& make) {
  static std::mutex lock;
  static std::unordered_map<std::string, std::weak_ptr<FrameHost>> hosts;
  std::lock_guard guard(lock);
  Hosts all;
  for (uint32_t thread = 0; thread < threads; ++thread) {
    std::weak_ptr<FrameHost>& known = hosts[name + ' ' + std::to_string(thread) + '/' + std::to_string(threads)];
    std::shared_ptr<FrameHost> found = known.lock();
    if (!found || found->abandoned_) {  // a forked child makes its own
      auto shared = thread ? all[0]->shared_ : threads > 1 ? std::make_shared<SharedNeighbours>() : nullptr;
      known = found = std::make_shared<FrameHost>(make(thread, all), ip, std::move(shared));
    }
    all.push_back(std::move(found));
  }
  return all;
}

uint32_t FrameHost::receive_bytes() const { return device_->receive_frames() * kAccounted; }

uint16_t FrameHost::free_port() {
  std::lock_guard guard(lock_);
  if (!last_port_) last_port_ = static_cast<uint16_t>(kFirstFreePort + now_ns() / 1000 % (UINT16_MAX - kFirstFreePort));
  do {
    last_port_ = last_port_ == UINT16_MAX ? kFirstFreePort : static_cast<uint16_t>(last_port_ + 1);
  } while (ports_.contains(last_port_));
  return last_port_;
}

HostCounters FrameHost::counters() {
  std::lock_guard guard(lock_);
  HostCounters now = counters_;
  now.no_room = device_->no_room();
  return now;
}

void FrameHost::abandon() {
  abandoned_ = true;
  device_->abandon();
}

void FrameHost::add(DatagramPort& port) {
  std::lock_guard guard(lock_);
  if (!ports_.emplace(port.local_.port, &port).second)
    throw std::system_error(EADDRINUSE, std::generic_category(), "UDP port " + std::to_string(port.local_.port));
  try {
    device_->open(port.local_);
  } catch (...) {
    ports_.erase(port.local_.port);
    throw;
  }
}

void FrameHost::remove(DatagramPort& port) {
  std::lock_guard guard(lock_);
  device_->close(port.local_);
  ports_.erase(port.local_.port);
  device_->release(port.held_);
  for (const auto& each : port.waiting_) device_->release({&each.frame, 1});
}

void FrameHost::take(DatagramPort& port, std::vector<Received>& into) {
  std::lock_guard guard(lock_);
  device_->release(port.held_);
  port.held_.clear();
  for (const auto& each : port.waiting_) {
    into.push_back(each.datagram);
    port.held_.push_back(each.frame);
  }
  port.waiting_.clear();
  port.any_waiting_ = false;
  arrived_.clear();
  unwanted_.clear();
  device_->receive(arrived_);
  for (const DeviceFrame& frame : arrived_) on_frame(frame, port, into);
  device_->release(unwanted_);
  if (!device_->shared_with_kernel()) device_->flush();  // answers to ARP and echo requests
}

void FrameHost::on_frame(const DeviceFrame& frame, DatagramPort& taker, std::vector<Received>& into) {
  const std::optional<DatagramView> view = parse_datagram(frame.data, frame.size);
  if (!view) {
    on_other(frame);
    unwanted_.push_back(frame);
    return;
  }
  const auto found = view->destination.ip == ip_ ? ports_.find(view->destination.port) : ports_.end();
  DatagramPort* const port = found == ports_.end() ? nullptr : found->second;
  if (!port || (port->peer_ && *port->peer_ != view->source) || (port != &taker && port->waiting_.size() >= kMaxWaiting)) {
    ++counters_.not_open;
    unwanted_.push_back(frame);
    return;
  }
  const auto neighbour = neighbours_.find(view->source.ip);
  if (neighbour != neighbours_.end() || neighbours_.size() < kMaxNeighbours) {
    NeighbourEntry& entry = neighbour != neighbours_.end() ? neighbour->second : neighbours_[view->source.ip];
    entry.neighbour = {view->source_mac, frame.interface, now_ns()};
    if (shared_ && entry.neighbour.heard - entry.told > kTellNs) {
      entry.told = entry.neighbour.heard;
      shared_->put(view->source.ip, entry.neighbour, false);
    }
  }
  if (view->ce) take_up_ce(view->payload, view->payload_bytes);
  const Received datagram = Received::whole(view->payload, view->payload_bytes, view->source);
  if (port == &taker) {
    into.push_back(datagram);
    taker.held_.push_back(frame);
    return;
  }
  port->waiting_.push_back({datagram, frame});
  if (!port->any_waiting_.exchange(true)) port->wake();
}

// ARP and echo requests, where no kernel answers them.
void FrameHost::on_other(const DeviceFrame& frame) {
  if (device_->shared_with_kernel()) {
    ++counters_.malformed;
    return;
  }
  const FrameView view = parse_frame(frame.data, frame.size, 0);
  const bool arp = view.ether_type == kArpType;
  if (view.malformed || (!arp && view.traffic != Traffic::echo)) {
    ++counters_.malformed;
    return;
  }
  if ((arp ? view.arp_target : view.ip_destination) != ip_) {
    ++counters_.not_open;
    return;
  }
  if (arp) {  // a request too says who sent it; only those whom somebody has asked for are kept
    const Neighbour told{load48(frame.data + kEthernetBytes + 8), frame.interface, now_ns()};
    if (const auto found = neighbours_.find(view.arp_sender); found != neighbours_.end() && found->second.asked)
      found->second.neighbour = told;
    if (shared_) shared_->put(view.arp_sender, told, true);
    if (view.traffic != Traffic::arp) return;  // no request
  }
  uint8_t* const answer = frame.size <= device_->largest_frame() ? device_->reserve(frame.interface, frame.size) : nullptr;
  if (!answer) return;
  std::memcpy(answer, frame.data, frame.size);
  if (arp)
    answer_arp(answer, device_->mac(frame.interface));
  else
    answer_echo(answer);
}

void FrameHost::ask(uint32_t ip, NeighbourEntry& entry, int64_t now) {
  if (entry.asked && now - entry.asked < kAskNs) return;
  entry.asked = now;
  if (shared_) shared_->expect(ip);
  for (uint16_t i = 0; i < device_->interfaces(); ++i)
    if (uint8_t* const frame = device_->reserve(i, kArpFrameBytes)) write_arp_request(frame, device_->mac(i), ip_, ip);
}

// True if the device can send to a peer. Else the kernel has to, or an ARP request has been sent.
bool FrameHost::known(Endpoint to, int64_t now, Neighbour& found) {
  const bool asks = !device_->shared_with_kernel();
  auto entry = neighbours_.find(to.ip);
  if (entry == neighbours_.end() && (asks || shared_) && neighbours_.size() < kMaxNeighbours)
    entry = neighbours_.try_emplace(to.ip).first;
  if (entry == neighbours_.end()) return false;
  Neighbour& neighbour = entry->second.neighbour;
  const auto fresh = [&] { return neighbour.heard && now - neighbour.heard < kSilentNs; };
  if (shared_ && !fresh()) shared_->look(to.ip, neighbour);
  if (!fresh()) {
    if (asks) ask(to.ip, entry->second, now);
    if (!asks || !neighbour.heard) return false;
  }
  found = neighbour;
  return true;
}

// Returns how many were sent.
size_t FrameHost::transmit(const DatagramPort& port, const Neighbour& neighbour, Endpoint to, std::span<const Segment> segments,
                           std::span<const uint64_t> sums) {
  size_t sent = 0;
  const UdpAddress from{device_->mac(neighbour.interface), port.local_.ip, port.local_.port};
  const UdpAddress peer{neighbour.mac, to.ip, to.port};
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const uint32_t bytes = kUdpHeadersBytes + segment.size, size = std::max(bytes, kShortestFrame);
    if (size > device_->largest_frame()) {
      ++counters_.too_large;
      continue;
    }
    uint8_t* const frame = device_->reserve(neighbour.interface, size);
    if (!frame) continue;
    ++sent;
    write_udp_headers(frame, from, peer, segment.size, ecn_of(segment));
    complete_udp_checksum(frame, sums[i]);
    std::memcpy(frame + kUdpHeadersBytes, segment.data, segment.size);
    if (bytes < size) std::memset(frame + bytes, 0, size - bytes);
  }
  return sent;
}

DatagramPort::DatagramPort(std::shared_ptr<FrameHost> host, std::unique_ptr<UdpPort>& udp, Endpoint local,
                           std::optional<Endpoint> peer, uint32_t largest)
    : local_(local), peer_(peer), process_(getpid()), wake_up_(make_wake_up()) {
  const uint32_t room = host->device().largest_frame() - kUdpHeadersBytes;
  if (largest > room)
    throw std::system_error(EMSGSIZE, std::generic_category(), "the interface carries datagrams of " + std::to_string(room) +
                                                                   " bytes, and the job's have " + std::to_string(largest));
  host->add(*this);
  host_ = std::move(host);
  udp_ = std::move(udp);
}

DatagramPort::~DatagramPort() { abandon(); }

void DatagramPort::abandon() {
  if (!host_) return;
  if (process_ == getpid())
    host_->remove(*this);
  else
    host_->abandon();
  host_.reset();
  wake_up_.reset();
  if (udp_) udp_->abandon();
}

bool DatagramPort::wait(int64_t timeout_ns) {
  FrameDevice& device = host_->device();
  const auto there = [&] { return any_waiting_.load(std::memory_order_relaxed) || device.ready(); };
  bool busy = there();
  if (!busy && timeout_ns != 0 && busy_poll_) busy = link::busy_poll(true, there);
  if (busy && ++waits_ < kPollEvery) return true;
  waits_ = 0;
  ++counters_.receive_calls;
  const std::array<int, 2> more = {wake_up_.get(), udp_ ? udp_->descriptor() : -1};
  const bool ready = device.wait(std::span(more).first(udp_ ? 2 : 1), busy ? 0 : timeout_ns);
  if (ready) {
    clear_wake_up(wake_up_.get());
    udp_ready_ = udp_ != nullptr;
  }
  return busy || ready;
}

void DatagramPort::receive(std::vector<Received>& into) {
  const size_t before = into.size();
  host_->take(*this, into);
  for (size_t i = before; i < into.size(); ++i) counters_.bytes_in += into[i].size;
  counters_.packets_in += into.size() - before;
  if (std::exchange(udp_ready_, false)) udp_->receive(into);
}

void DatagramPort::send(std::span<const Endpoint> to, std::span<const Segment> segments) {
  if (segments.empty()) return;
  sums_.clear();
  uint32_t largest = 0;
  for (const Segment& segment : segments) {
    sums_.push_back(ones_sum(segment.data, segment.size));
    largest = std::max(largest, segment.size);
  }
  const bool fits = kUdpHeadersBytes + largest <= host_->device().largest_frame();
  const int64_t now = now_ns();
  for (const Endpoint& peer : to) {
    std::unique_lock guard(host_->lock_);
    Neighbour neighbour;
    const bool known = (fits || !udp_) && host_->known(peer, now, neighbour);
    if (known) {
      counters_.packets_out += segments.size();
      for (const Segment& segment : segments) counters_.bytes_out += segment.size;
      counters_.send_errors += segments.size() - host_->transmit(*this, neighbour, peer, segments, sums_);
    } else if (!udp_) {
      host_->counters_.unaddressed += segments.size();
      counters_.send_errors += segments.size();
    }
    if (known || !udp_) {
      ++counters_.send_calls;
      host_->device().flush();
    }
    guard.unlock();
    if (!known && udp_) udp_->send({&peer, 1}, segments);
  }
}

const PortCounters& DatagramPort::counters() const {
  total_ = counters_;
  if (udp_) total_ += udp_->counters();
  return total_;
}

}  // namespace switchagg
