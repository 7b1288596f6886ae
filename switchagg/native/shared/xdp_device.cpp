#include "switchagg/native/shared/xdp_device.h"

#include <ifaddrs.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/frame.h"

#ifndef SOL_XDP
#define SOL_XDP 283
#endif

namespace switchagg {
namespace {

constexpr uint32_t kHeadroom = 256;        // XDP_PACKET_HEADROOM, before every frame that comes
constexpr uint32_t kReceiveChunks = 4096;  // of all queues together, about
constexpr uint32_t kFewestChunks = 1024;   // of each
constexpr uint32_t kSendChunks = 2048;
constexpr uint32_t kBurst = 128;           // frames of one queue in one receive()
constexpr uint32_t kMostQueues = 16;
constexpr int kSendBuffer = 8 << 20;
constexpr int kBindTries = 50, kBindPauseMs = 10;

uint32_t acquire(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
void publish(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

[[noreturn]] void fail_with(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// A ring of the kernel; `next` is this side's free-running index.
template <typename Entry>
struct Ring {
  Mapping memory;
  uint32_t *producer = nullptr, *consumer = nullptr, *flags = nullptr;
  Entry* entries = nullptr;
  uint32_t size = 0, next = 0;

  void map(int socket, uint32_t count, const xdp_ring_offset& at, int64_t page_offset) {
    const size_t bytes = at.desc + count * sizeof(Entry);
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, socket, page_offset);
    if (mapped == MAP_FAILED) fail("mapping an AF_XDP ring");
    memory = Mapping(static_cast<uint8_t*>(mapped), Unmap{bytes});
    producer = reinterpret_cast<uint32_t*>(memory.get() + at.producer);
    consumer = reinterpret_cast<uint32_t*>(memory.get() + at.consumer);
    flags = reinterpret_cast<uint32_t*>(memory.get() + at.flags);
    entries = reinterpret_cast<Entry*>(memory.get() + at.desc);
    size = count;
  }
  Entry& at(uint32_t index) { return entries[index & (size - 1)]; }
  bool wants_wake_up() const { return acquire(flags) & XDP_RING_NEED_WAKEUP; }
};

// Largest IP packet, index and MAC of an interface.
struct Facts {
  int index, mtu;
  uint64_t mac;
};

Facts facts_of(const std::string& name) {
  const Descriptor asked(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!asked) fail("socket");
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  const auto ask = [&](unsigned long what) {
    if (ioctl(asked.get(), what, &request) != 0) fail("no such interface");
  };
  Facts found{};
  ask(SIOCGIFINDEX);
  found.index = request.ifr_ifindex;
  ask(SIOCGIFMTU);
  found.mtu = request.ifr_mtu;
  ask(SIOCGIFHWADDR);
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) fail_with(EAFNOSUPPORT, "it is no Ethernet interface");
  found.mac = load48(reinterpret_cast<const uint8_t*>(request.ifr_hwaddr.sa_data));
  return found;
}

std::string interface_of(uint32_t ip) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) fail("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const ifaddrs* each = all; each; each = each->ifa_next)
    if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET &&
        ntohl(reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr) == ip)
      return each->ifa_name;
  fail_with(EADDRNOTAVAIL, "no interface has the address");
}

}  // namespace

struct XdpDevice::Queue {
  // The socket after the rings and the memory: it goes first.
  PacketMemory memory;
  Ring<uint64_t> fill, completion;
  Ring<xdp_desc> rx, tx;
  Descriptor socket;
  uint32_t receive_chunks = 0;
  std::vector<uint64_t> free;  // chunks to send from
  bool zero_copy = false;

  void kick_fill() {
    if (fill.wants_wake_up()) recvfrom(socket.get(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
  }
};

XdpDevice::XdpDevice(const std::string& interface, uint32_t thread, uint32_t threads, std::shared_ptr<RedirectProgram> program)
    : name_(interface), program_(std::move(program)) {
  const Facts facts = facts_of(interface);
  const uint32_t frame = static_cast<uint32_t>(facts.mtu) + kEthernetBytes;
  chunk_ = frame + kHeadroom <= 2048 ? 2048 : 4096;
  if (frame + kHeadroom > chunk_)
    fail_with(EMSGSIZE, "its MTU is " + std::to_string(facts.mtu) + ", and AF_XDP carries " +
                            std::to_string(chunk_ - kHeadroom - kEthernetBytes) + " bytes");
  mac_ = facts.mac;
  largest_ = frame;
  if (!program_) program_ = std::make_shared<RedirectProgram>(facts.index, chunk_ - kHeadroom, kMostQueues);
  const auto too_few = [=] {
    fail_with(EINVAL, "it has " + std::to_string(thread) + " queues to use, and the switch " + std::to_string(threads) +
                          " threads (ethtool -L " + interface + " combined " + std::to_string(threads) + ")");
  };
  if (thread >= kMostQueues) too_few();
  for (uint32_t number = thread; number < kMostQueues; number += threads) {
    try {
      add_queue(facts.index, number);
    } catch (const std::system_error& error) {
      // EINVAL: there is no such queue. Frames of a queue without a socket stay with the kernel, which is right but slow.
      if (number > thread) break;
      if (thread > 0 && error.code().value() == EINVAL) too_few();
      throw;
    }
  }
}

XdpDevice::~XdpDevice() = default;

void XdpDevice::add_queue(int interface, uint32_t number) {
  auto made = std::make_unique<Queue>();
  Queue& q = *made;
  q.socket = Descriptor(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!q.socket) fail("opening an AF_XDP socket");
  const int fd = q.socket.get();
  const bool sends = queues_.empty();
  q.receive_chunks = sends ? kReceiveChunks : kFewestChunks;
  const uint32_t chunks = q.receive_chunks + (sends ? kSendChunks : 0);
  q.memory = PacketMemory(size_t{chunks} * chunk_);
  xdp_umem_reg memory{};
  memory.addr = reinterpret_cast<uintptr_t>(q.memory.get());
  memory.len = uint64_t{chunks} * chunk_;
  memory.chunk_size = chunk_;
  const auto set = [&](int option, const auto& value, const char* what) {
    if (setsockopt(fd, SOL_XDP, option, &value, sizeof value) != 0) fail(what);
  };
  set(XDP_UMEM_REG, memory, "registering memory for AF_XDP (ulimit -l)");
  const uint32_t send_ring = kSendChunks;
  set(XDP_UMEM_FILL_RING, q.receive_chunks, "making an AF_XDP ring");
  set(XDP_UMEM_COMPLETION_RING, send_ring, "making an AF_XDP ring");
  set(XDP_RX_RING, q.receive_chunks, "making an AF_XDP ring");
  if (sends) set(XDP_TX_RING, send_ring, "making an AF_XDP ring");
  xdp_mmap_offsets at{};
  socklen_t length = sizeof at;
  if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &length) != 0 || length != sizeof at) fail("AF_XDP before Linux 5.4");
  q.fill.map(fd, q.receive_chunks, at.fr, static_cast<int64_t>(XDP_UMEM_PGOFF_FILL_RING));
  q.completion.map(fd, send_ring, at.cr, static_cast<int64_t>(XDP_UMEM_PGOFF_COMPLETION_RING));
  q.rx.map(fd, q.receive_chunks, at.rx, XDP_PGOFF_RX_RING);
  if (sends) {
    q.tx.map(fd, send_ring, at.tx, static_cast<int64_t>(XDP_PGOFF_TX_RING));
    enlarge_buffer(fd, SO_SNDBUF, SO_SNDBUFFORCE, kSendBuffer);
    for (uint64_t i = q.receive_chunks; i < chunks; ++i) q.free.push_back(i * chunk_);
  }
  for (uint64_t i = 0; i < q.receive_chunks; ++i) q.fill.at(q.fill.next++) = i * chunk_;
  publish(q.fill.producer, q.fill.next);

  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_ifindex = static_cast<uint32_t>(interface);
  address.sxdp_queue_id = number;
  // Without XDP_COPY the kernel tries to do without a copy first; behind the driver it always copies.
  address.sxdp_flags = static_cast<uint16_t>(XDP_USE_NEED_WAKEUP | (program_->in_driver() ? 0 : XDP_COPY));
  for (int tries = 0; bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0; ++tries) {
    // The kernel lets go of a closed socket's queue a moment later.
    if (errno != EBUSY || tries == kBindTries) fail("binding an AF_XDP socket");
    poll(nullptr, 0, kBindPauseMs);
  }
  xdp_options options{};
  length = sizeof options;
  q.zero_copy = getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &length) == 0 && options.flags & XDP_OPTIONS_ZEROCOPY;
  program_->set_socket(number, fd);
  q.kick_fill();
  queues_.push_back(std::move(made));
}

std::string XdpDevice::description(size_t queues) const {
  return name_ + (program_->in_driver() ? ", in the driver" : ", behind the driver") +
         (queues_[0]->zero_copy ? ", without a copy, " : ", with a copy, ") + std::to_string(queues) +
         (queues == 1 ? " queue" : " queues");
}

uint32_t XdpDevice::receive_frames() const { return queues_[0]->receive_chunks; }

bool XdpDevice::ready() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& q) { return acquire(q->rx.producer) != acquire(q->rx.consumer); });
}

void XdpDevice::receive(std::vector<DeviceFrame>& into) {
  turn_ = (turn_ + 1) % queues_.size();
  for (size_t i = 0; i < queues_.size(); ++i) {
    const size_t number = (turn_ + i) % queues_.size();
    Queue& q = *queues_[number];
    const uint32_t there = std::min(acquire(q.rx.producer) - q.rx.next, kBurst);
    for (uint32_t k = 0; k < there; ++k) {
      const xdp_desc& desc = q.rx.at(q.rx.next++);
      into.push_back({q.memory.get() + desc.addr, desc.len, 0, uint64_t{number} << 56 | desc.addr});
    }
    if (there) publish(q.rx.consumer, q.rx.next);
  }
}

void XdpDevice::release(std::span<const DeviceFrame> frames) {
  for (const DeviceFrame& frame : frames) {
    Queue& q = *queues_[frame.handle >> 56];
    const uint64_t at = frame.handle & ((uint64_t{1} << 56) - 1);
    q.fill.at(q.fill.next++) = at - at % chunk_;
  }
  for (const auto& q : queues_) {
    if (q->fill.next == __atomic_load_n(q->fill.producer, __ATOMIC_RELAXED)) continue;
    publish(q->fill.producer, q->fill.next);
    q->kick_fill();
  }
}

// Takes back the chunks of frames that have left.
void XdpDevice::reap(Queue& q) {
  const uint32_t done = acquire(q.completion.producer);
  if (done == q.completion.next) return;
  while (q.completion.next != done) q.free.push_back(q.completion.at(q.completion.next++));
  publish(q.completion.consumer, q.completion.next);
}

uint8_t* XdpDevice::reserve(uint16_t, uint32_t bytes) {
  Queue& q = *queues_[0];
  if (q.free.empty()) {
    reap(q);
    if (q.free.empty()) {
      flush();
      reap(q);
    }
    if (q.free.empty()) {
      ++no_room_;
      return nullptr;
    }
  }
  const uint64_t at = q.free.back();
  q.free.pop_back();
  q.tx.at(q.tx.next++) = {at, bytes, 0};
  return q.memory.get() + at;
}

void XdpDevice::flush() {
  Queue& q = *queues_[0];
  publish(q.tx.producer, q.tx.next);
  // A kernel that copies takes a few dozen frames a call.
  for (uint32_t tries = 0; tries < kSendChunks && q.tx.wants_wake_up() && acquire(q.tx.consumer) != q.tx.next; ++tries) {
    if (sendto(q.socket.get(), nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0) continue;
    if (errno == ENOBUFS || errno == EBUSY) {
      pollfd full{q.socket.get(), POLLOUT, 0};
      poll(&full, 1, 1);
    } else if (errno != EAGAIN && errno != EINTR) {
      break;  // the interface is down: frames wait until it is up, and then until there is no room
    }
  }
  reap(q);
}

bool XdpDevice::wait(std::span<const int> more, int64_t timeout_ns) {
  std::array<pollfd, kMostQueues + 8> fds;
  size_t count = 0;
  for (const auto& q : queues_) fds[count++] = {q->socket.get(), POLLIN, 0};
  for (const int fd : more.first(std::min<size_t>(more.size(), 8))) fds[count++] = {fd, POLLIN, 0};
  const timespec limit = timespec_of(timeout_ns);
  return ppoll(fds.data(), count, timeout_ns >= 0 ? &limit : nullptr, nullptr) != 0;
}

FrameHost::Hosts xdp_hosts(uint32_t ip, uint32_t threads, std::string& description) {
  const std::string interface = interface_of(ip);
  const auto device = [](const std::shared_ptr<FrameHost>& host) -> XdpDevice& { return static_cast<XdpDevice&>(host->device()); };
  try {
    size_t queues = 0;
    const auto make = [&](uint32_t thread, const FrameHost::Hosts& before) {
      return std::make_unique<XdpDevice>(interface, thread, threads, before.empty() ? nullptr : device(before[0]).program());
    };
    auto hosts = FrameHost::named("xdp " + interface + " " + std::to_string(ip), ip, threads, make);
    for (const auto& host : hosts) queues += device(host).queues();
    description = device(hosts[0]).description(queues);
    return hosts;
  } catch (const std::system_error& error) {
    std::string what = error.what();
    if (const std::string tail = ": " + error.code().message(); what.ends_with(tail)) what.resize(what.size() - tail.size());
    fail_with(error.code().value(), interface + ": " + what);
  }
}

void XdpDevice::abandon() {
  program_->abandon();
  for (const auto& q : queues_) q->socket.reset();
}

}  // namespace switchagg
