#include "switchagg/native/shared/dpdk_device.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "switchagg/native/shared/clock.h"

namespace switchagg {
namespace {

constexpr uint16_t kBurst = 64;
constexpr unsigned kSpare = 64;          // mbufs that are taken from the pool at once
constexpr int kTries = 100;              // of a burst that a full queue does not take
constexpr int64_t kFirstNapNs = 20'000, kLongestNapNs = 1'000'000;
constexpr int64_t kInterruptNapNs = 50'000'000;  // for frames that came while an interrupt was turned on
constexpr uint32_t kHeadroom = 128;      // RTE_PKTMBUF_HEADROOM, as pools are made with

// struct rte_mbuf, the same in DPDK 22.11 to 24.11. switchagg/devices/dpdk.py has checked it against the library.
struct Mbuf {
  uint8_t* buffer;
  uint64_t iova;
  uint16_t data_offset, references, segments, port;
  uint64_t flags;
  uint32_t packet_type, packet_bytes;
  uint16_t data_bytes, vlan_tag;
  uint32_t hash[2];
  uint16_t outer_vlan_tag, buffer_bytes;
  void* pool;
  uint64_t next, offload;
};
static_assert(offsetof(Mbuf, data_offset) == 16 && offsetof(Mbuf, flags) == 24 && offsetof(Mbuf, packet_bytes) == 36 &&
              offsetof(Mbuf, data_bytes) == 40 && offsetof(Mbuf, buffer_bytes) == 54 && offsetof(Mbuf, pool) == 56 &&
              offsetof(Mbuf, offload) == 72);

Mbuf& mbuf(void* at) { return *static_cast<Mbuf*>(at); }

DpdkSettings of_queue(DpdkSettings settings, uint32_t queue) {
  std::erase_if(settings.ports, [queue](const DpdkPort& port) { return port.queue != queue; });
  return settings;
}

template <typename To>
To pointer(int64_t number) {
  return reinterpret_cast<To>(static_cast<uintptr_t>(number));
}

}  // namespace

DpdkSettings dpdk_settings(const std::vector<std::vector<int64_t>>& ports, uint32_t mtu, uint64_t pool,
                           const std::vector<int64_t>& functions, uint32_t receive_frames, bool poll) {
  DpdkSettings made{};
  for (const auto& port : ports)
    made.ports.push_back({static_cast<uint16_t>(port.at(0)), pointer<DpdkPort::Burst>(port.at(1)),
                          pointer<DpdkPort::Burst>(port.at(3)), pointer<void*>(port.at(2)), pointer<void*>(port.at(4)),
                          static_cast<uint64_t>(port.at(5)), static_cast<int>(port.at(6)), static_cast<uint16_t>(port.at(7))});
  made.mtu = mtu;
  made.pool = pointer<void*>(static_cast<int64_t>(pool));
  made.dequeue = pointer<decltype(made.dequeue)>(functions.at(0));
  made.free_bulk = pointer<decltype(made.free_bulk)>(functions.at(1));
  made.interrupt_on = pointer<decltype(made.interrupt_on)>(functions.at(2));
  made.interrupt_off = pointer<decltype(made.interrupt_off)>(functions.at(3));
  made.receive_frames = receive_frames;
  made.poll = poll;
  return made;
}

FrameHost::Hosts dpdk_hosts(uint32_t ip, const DpdkSettings& settings, uint32_t threads) {
  const auto make = [&](uint32_t thread, const FrameHost::Hosts&) { return std::make_unique<DpdkDevice>(settings, thread); };
  auto hosts = FrameHost::named("dpdk", ip, threads, make);
  if (hosts[0]->ip() != ip)
    throw std::system_error(EADDRINUSE, std::generic_category(), "this process's DPDK ports have another address already");
  return hosts;
}

DpdkDevice::DpdkDevice(const DpdkSettings& settings, uint32_t queue)
    : settings_(of_queue(settings, queue)), leaving_(settings_.ports.size()) {
  came_.reserve(kBurst * settings_.ports.size());
}

DpdkDevice::~DpdkDevice() {
  for (const Came& each : came_) spare_.push_back(each.mbuf);
  for (const auto& port : leaving_) spare_.insert(spare_.end(), port.begin(), port.end());
  if (!spare_.empty()) settings_.free_bulk(spare_.data(), static_cast<unsigned>(spare_.size()));
}

uint32_t DpdkDevice::largest_frame() const { return settings_.mtu + kEthernetBytes; }

// Takes frames from the ports if none are waiting. With the lock held.
void DpdkDevice::look() const {
  if (!came_.empty()) return;
  std::array<void*, kBurst> burst;
  for (uint16_t i = 0; i < settings_.ports.size(); ++i) {
    const DpdkPort& port = settings_.ports[i];
    const uint16_t count = port.receive(port.receive_queue, burst.data(), kBurst);
    for (uint16_t k = 0; k < count; ++k) came_.push_back({burst[k], i});
  }
  there_.store(came_.size(), std::memory_order_relaxed);
}

bool DpdkDevice::ready() const {
  if (there_.load(std::memory_order_relaxed)) return true;
  const std::unique_lock guard(lock_, std::try_to_lock);
  if (!guard) return false;  // another thread looks, and wakes up whom the frames are for
  look();
  return !came_.empty();
}

void DpdkDevice::receive(std::vector<DeviceFrame>& into) {
  const std::lock_guard guard(lock_);
  look();
  back_.clear();
  for (const auto& [at, interface] : came_) {
    const Mbuf& m = mbuf(at);
    if (m.segments == 1)
      into.push_back({m.buffer + m.data_offset, m.data_bytes, interface, reinterpret_cast<uintptr_t>(at)});
    else
      back_.push_back(at);  // larger than a frame of this MTU
  }
  came_.clear();
  there_.store(0, std::memory_order_relaxed);
  if (!back_.empty()) settings_.free_bulk(back_.data(), static_cast<unsigned>(back_.size()));
}

void DpdkDevice::release(std::span<const DeviceFrame> frames) {
  if (frames.empty()) return;
  back_.clear();
  for (const DeviceFrame& frame : frames) back_.push_back(reinterpret_cast<void*>(frame.handle));
  settings_.free_bulk(back_.data(), static_cast<unsigned>(back_.size()));
}

uint8_t* DpdkDevice::reserve(uint16_t interface, uint32_t bytes) {
  if (spare_.empty()) {
    spare_.resize(kSpare);
    if (settings_.dequeue(settings_.pool, spare_.data(), kSpare) != 0) {
      spare_.clear();
      ++no_room_;
      return nullptr;
    }
  }
  void* const at = spare_.back();
  spare_.pop_back();
  leaving_[interface].push_back(at);
  Mbuf& m = mbuf(at);  // free mbufs have one segment and one reference, and no next one
  m.data_offset = kHeadroom;
  m.port = UINT16_MAX;
  m.flags = 0;
  m.packet_type = 0;
  m.packet_bytes = bytes;
  m.data_bytes = static_cast<uint16_t>(bytes);
  m.vlan_tag = m.outer_vlan_tag = 0;
  m.offload = 0;
  return m.buffer + kHeadroom;
}

void DpdkDevice::flush() {
  for (size_t i = 0; i < leaving_.size(); ++i) {
    const DpdkPort& port = settings_.ports[i];
    std::vector<void*>& frames = leaving_[i];
    size_t sent = 0;
    for (int tries = 0; sent < frames.size() && tries < kTries; ++tries) {
      const auto count = static_cast<uint16_t>(std::min<size_t>(frames.size() - sent, kBurst));
      const uint16_t taken = port.transmit(port.transmit_queue, frames.data() + sent, count);
      sent += taken;
      if (taken) tries = 0;
    }
    if (sent < frames.size()) {
      no_room_ += frames.size() - sent;
      settings_.free_bulk(frames.data() + sent, static_cast<unsigned>(frames.size() - sent));
    }
    frames.clear();
  }
}

bool DpdkDevice::wait(std::span<const int> more, int64_t timeout_ns) {
  std::array<pollfd, 40> fds;
  size_t count = 0;
  for (const int fd : more.first(std::min<size_t>(more.size(), 8))) fds[count++] = {fd, POLLIN, 0};
  const size_t own = count;
  bool interrupts = !settings_.poll;
  for (const DpdkPort& port : settings_.ports) interrupts &= port.interrupt >= 0 && count < fds.size();
  const auto turn = [&](auto function) {
    for (const DpdkPort& port : settings_.ports) function(port.number, port.queue);
  };
  if (interrupts) {
    for (const DpdkPort& port : settings_.ports) fds[count++] = {port.interrupt, POLLIN, 0};
    turn(settings_.interrupt_on);
  }
  const int64_t begin = now_ns();
  bool found = false;
  for (int64_t nap = kFirstNapNs;; nap = std::min(2 * nap, kLongestNapNs)) {
    if ((found = ready())) break;
    const int64_t left = timeout_ns < 0 ? INT64_MAX : timeout_ns - (now_ns() - begin);
    const int64_t sleep = settings_.poll ? 0 : std::min(interrupts ? kInterruptNapNs : nap, std::max<int64_t>(left, 0));
    const timespec limit = timespec_of(sleep);
    if (ppoll(fds.data(), count, &limit, nullptr) != 0) {
      for (size_t i = 0; i < own; ++i) found |= fds[i].revents != 0;
      for (size_t i = own; i < count; ++i)
        if (fds[i].revents) clear_wake_up(fds[i].fd);
      if (found) break;
    }
    if (left <= 0) break;
  }
  if (interrupts) turn(settings_.interrupt_off);
  return found;
}

}  // namespace switchagg
