#include "switchagg/native/switch/frame_port.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "switchagg/native/shared/frame.h"
#include "switchagg/native/shared/clock.h"

namespace switchagg {
namespace {

constexpr size_t kBatch = 64;               // frames in one system call
constexpr size_t kTakeEach = 128;           // frames of one interface in one receive()
constexpr size_t kHeadroom = 64;            // in front of a large frame, for its tag
constexpr size_t kLargeBytes = (1 << 16) + 4096;  // a super-frame and its headers
constexpr uint32_t kRingBytes = 4 << 20;    // of an interface: 2,048 frames of 1,500 bytes
constexpr uint32_t kRingBlock = 1 << 16;
constexpr int kSendBuffer = 8 << 20;
constexpr uint32_t kPollEvery = 16;         // a busy port polls its sockets in one wait() of so many
constexpr int kFullMs = 2;                  // wait for a full socket

constexpr int kIgnoreOutgoing = 23;  // PACKET_IGNORE_OUTGOING, which older headers lack

template <typename T>
bool set_option(const Descriptor& socket, int option, const T& value) {
  return setsockopt(socket.get(), SOL_PACKET, option, &value, sizeof value) == 0;
}

// EtherType and tag that the kernel has taken out of a frame; 0: none.
uint32_t tag_of(uint32_t status, uint16_t tpid, uint16_t tci) {
  if (!(status & TP_STATUS_VLAN_VALID)) return 0;
  return (status & TP_STATUS_VLAN_TPID_VALID ? uint32_t{tpid} : 0x8100u) << 16 | tci;
}

void clear_error(int socket) {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
}

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

struct Ring {  // of the kernel, mapped here: `places` places of `place` bytes
  Mapping memory;
  uint32_t place = 0, places = 0, next = 0;
  uint32_t taken = 0;  // places before `next` that Received views show

  tpacket2_hdr* at(uint32_t i) const { return reinterpret_cast<tpacket2_hdr*>(memory.get() + size_t{i % places} * place); }
  // A place that the kernel has filled; nullptr: none.
  tpacket2_hdr* filled() const {
    if (!memory) return nullptr;
    tpacket2_hdr* header = at(next);
    return __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER ? header : nullptr;
  }
};

}  // namespace

struct FramePort::Interface {
  InterfaceName name;
  Descriptor rx, tx;
  Ring ring;
  int index = 0;  // the kernel's; 0: there is no such interface
  InterfaceCounters counters;
};

struct FramePort::Buffers {
  std::array<iovec, kBatch> piece;
  std::array<mmsghdr, kBatch> out;
  std::vector<std::vector<uint8_t>> large;  // frames of the last receive() that are not in a ring, or were cut up
};

struct FramePort::Arrival {
  uint8_t* frame;  // with kTagBytes free before it
  uint32_t size;
  OffloadInfo about;
  uint32_t tag;  // EtherType and tag that the kernel has taken out of it; 0: none
};

FramePort::FramePort(std::vector<InterfaceName> interfaces, int receive_buffer)
    : receive_buffer_(receive_buffer), buffers_(std::make_unique<Buffers>()) {
  wake_up_ = make_wake_up();
  epoll_.watch(wake_up_.get(), &wake_up_);
  netlink_ = Descriptor(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE));
  sockaddr_nl links{};
  links.nl_family = AF_NETLINK;
  links.nl_groups = RTMGRP_LINK;
  if (!netlink_ || bind(netlink_.get(), reinterpret_cast<sockaddr*>(&links), sizeof links) != 0) fail(errno, "netlink");
  epoll_.watch(netlink_.get(), &netlink_);

  for (InterfaceName& name : interfaces) {
    auto made = std::make_unique<Interface>();
    made->name = std::move(name);
    if (const int error = open(*made)) fail(error, made->name.name);
    if (by_port_.size() <= made->name.port) by_port_.resize(made->name.port + size_t{1});
    by_port_[made->name.port] = made.get();
    interfaces_.push_back(std::move(made));
  }
}

FramePort::~FramePort() = default;

int FramePort::open(Interface& interface) {
  const int index = static_cast<int>(if_nametoindex(interface.name.name.c_str()));
  if (index == 0) return ENODEV;
  // Without a protocol before bind(), or frames of all interfaces would arrive in between.
  Descriptor rx(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  Descriptor tx(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!rx || !tx) return errno;
  if (!set_option(rx, PACKET_VNET_HDR, 1) || !set_option(rx, PACKET_AUXDATA, 1) ||
      !set_option(rx, PACKET_VERSION, int{TPACKET_V2}))
    return errno;
  set_option(rx, kIgnoreOutgoing, 1);  // before Linux 4.20 take() discards them
  enlarge_buffer(rx.get(), SO_RCVBUF, SO_RCVBUFFORCE, receive_buffer_);
  enlarge_buffer(tx.get(), SO_SNDBUF, SO_SNDBUFFORCE, kSendBuffer);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = index;
  if (bind(tx.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return errno;
  address.sll_protocol = htons(ETH_P_ALL);
  // A place holds a frame of the interface's MTU and what the kernel writes before it.
  ifreq request{};
  std::strncpy(request.ifr_name, interface.name.name.c_str(), IFNAMSIZ - 1);
  if (ioctl(netlink_.get(), SIOCGIFMTU, &request) != 0) return errno;
  Ring& ring = interface.ring;
  ring = {};
  ring.place = std::clamp(std::bit_ceil(static_cast<uint32_t>(request.ifr_mtu) + 256), uint32_t{2048}, kRingBlock);
  ring.places = kRingBytes / ring.place;
  const tpacket_req shape{kRingBlock, kRingBytes / kRingBlock, ring.place, ring.places};
  if (!set_option(rx, PACKET_COPY_THRESH, 1) || !set_option(rx, PACKET_RX_RING, shape)) return errno;
  ring.memory = map_memory(kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, rx.get());
  if (!ring.memory) return errno;
  if (bind(rx.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return errno;
  packet_mreq all{};  // also frames that are addressed to other stations
  all.mr_ifindex = index;
  all.mr_type = PACKET_MR_PROMISC;
  if (!set_option(rx, PACKET_ADD_MEMBERSHIP, all)) return errno;

  epoll_.watch(rx.get(), &interface);
  interface.rx = std::move(rx);  // the former socket closes with `rx`, and leaves the epoll set
  interface.tx = std::move(tx);
  interface.index = index;
  update_state(interface);
  return 0;
}

// Reads from the kernel whether an interface is up.
void FramePort::update_state(Interface& interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface.name.name.c_str(), IFNAMSIZ - 1);
  const bool there = ioctl(netlink_.get(), SIOCGIFFLAGS, &request) == 0;
  const bool up = there && (request.ifr_flags & IFF_UP);
  if (interface.counters.up.exchange(up) && !up) ++interface.counters.downs;
}

bool FramePort::wait(int64_t timeout_ns) {
  for (const auto& each : interfaces_) release(*each);
  const bool busy = std::any_of(interfaces_.begin(), interfaces_.end(), [](const auto& each) { return each->ring.filled(); });
  if (busy && ++waits_ < kPollEvery) return true;
  waits_ = 0;
  if (busy) timeout_ns = 0;
  std::array<epoll_event, 64> events;
  ++counters_.receive_calls;
  const std::span<epoll_event> ready = epoll_.wait(events, timeout_ns);
  for (const epoll_event& event : ready) {
    void* const tag = event.data.ptr;
    if (tag == &wake_up_) {
      clear_wake_up(wake_up_.get());
    } else if (tag == &netlink_) {
      changed_ = true;
    } else {
      clear_error(static_cast<Interface*>(tag)->rx.get());  // "network is down"; frames are in the ring
    }
  }
  return busy || !ready.empty();
}

void FramePort::abandon() {
  for (const auto& each : interfaces_) {
    each->rx.reset();
    each->tx.reset();
  }
  netlink_.reset();
  epoll_.close();
  wake_up_.reset();
}

void FramePort::receive(std::vector<Received>& into) {
  if (changed_) {
    changed_ = false;
    std::array<uint8_t, 8192> message;
    while (recv(netlink_.get(), message.data(), message.size(), 0) > 0 || errno == ENOBUFS) errno = 0;
    for (const auto& each : interfaces_) {
      const auto index = static_cast<int>(if_nametoindex(each->name.name.c_str()));
      if (index == each->index || (index != 0 && open(*each) != 0)) update_state(*each);
      if (index == 0) {
        each->index = 0;
        update_state(*each);
      }
    }
  }
  buffers_->large.clear();
  const size_t count = interfaces_.size();
  turn_ = count ? (turn_ + 1) % count : 0;
  for (size_t i = 0; i < count; ++i) {
    Interface& interface = *interfaces_[(turn_ + i) % count];
    release(interface);
    take(interface, into);
  }
}

// Returns the frames of the last receive() to the kernel.
void FramePort::release(Interface& interface) {
  Ring& ring = interface.ring;
  for (; ring.taken > 0; --ring.taken)
    __atomic_store_n(&ring.at(ring.next + ring.places - ring.taken)->tp_status, uint32_t{TP_STATUS_KERNEL}, __ATOMIC_RELEASE);
}

void FramePort::take(Interface& interface, std::vector<Received>& into) {
  Ring& ring = interface.ring;
  bool losing = false;
  for (size_t i = 0; i < kTakeEach; ++i) {
    tpacket2_hdr* const header = ring.filled();
    if (!header || ring.taken == ring.places) break;
    ring.next = (ring.next + 1) % ring.places;
    ++ring.taken;
    const uint32_t status = header->tp_status;
    losing |= (status & TP_STATUS_LOSING) != 0;
    if (status & TP_STATUS_COPY) {
      take_large(interface, into);
      continue;
    }
    sockaddr_ll from;
    uint8_t* const start = reinterpret_cast<uint8_t*>(header);
    std::memcpy(&from, start + TPACKET_ALIGN(sizeof *header), sizeof from);
    if (from.sll_pkttype == PACKET_OUTGOING) continue;
    if (header->tp_snaplen < header->tp_len) {  // the socket's buffer was full too
      ++interface.counters.missed;
      continue;
    }
    Arrival arrival{start + header->tp_mac, header->tp_snaplen, {}, tag_of(status, header->tp_vlan_tpid, header->tp_vlan_tci)};
    std::memcpy(&arrival.about, arrival.frame - sizeof arrival.about, sizeof arrival.about);
    pass(interface, arrival, into);
  }
  tpacket_stats stats{};
  socklen_t length = sizeof stats;
  if (losing && getsockopt(interface.rx.get(), SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0)
    interface.counters.missed.add(stats.tp_drops);
}

// Reads a frame that is too large for the ring, which the kernel has queued at the socket.
void FramePort::take_large(Interface& interface, std::vector<Received>& into) {
  std::vector<uint8_t>& memory = buffers_->large.emplace_back(kLargeBytes);
  Arrival arrival{memory.data() + kHeadroom, 0, {}, 0};
  iovec pieces[] = {{&arrival.about, sizeof arrival.about}, {arrival.frame, kLargeBytes - kHeadroom}};
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(tpacket_auxdata))];
  sockaddr_ll from{};
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ++counters_.receive_calls;
  const ssize_t got = recvmsg(interface.rx.get(), &message, MSG_DONTWAIT);
  // EINVAL: a super-frame of a kind that virtio_net_hdr cannot describe.
  if (got < static_cast<ssize_t>(sizeof arrival.about) || message.msg_flags & MSG_TRUNC) {
    ++interface.counters.refused;
    return;
  }
  arrival.size = static_cast<uint32_t>(got) - static_cast<uint32_t>(sizeof arrival.about);
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata aux;
    std::memcpy(&aux, CMSG_DATA(c), sizeof aux);
    arrival.tag = tag_of(aux.tp_status, aux.tp_vlan_tpid, aux.tp_vlan_tci);
  }
  pass(interface, arrival, into);
}

// Turns an arrival into the frames that a cable would have carried.
void FramePort::pass(Interface& interface, const Arrival& arrival, std::vector<Received>& into) {
  const auto place = static_cast<uint16_t>(interface.name.port + 1);
  const auto show = [&](uint8_t* data, uint32_t bytes) {
    into.push_back(Received::whole(data, bytes, {0, 0, place}));
    ++interface.counters.packets_in;
    interface.counters.bytes_in.add(bytes);
    ++counters_.packets_in;
    counters_.bytes_in += bytes;
  };
  uint8_t* frame = arrival.frame;
  uint32_t size = arrival.size;
  OffloadInfo about = arrival.about;
  if (about.gso_type == 0 && (about.flags & OffloadInfo::kNeedsChecksum))
    complete_checksum(frame, size, about.checksum_start, about.checksum_offset);
  if (arrival.tag && size >= 12) {
    frame -= kTagBytes;
    std::memmove(frame, frame + kTagBytes, 12);
    wire::store32(frame + 12, arrival.tag);
    size += kTagBytes;
    about.checksum_start = static_cast<uint16_t>(about.checksum_start + kTagBytes);
  }
  if (about.gso_type == 0) return show(frame, size);
  std::vector<uint8_t>& memory = buffers_->large.emplace_back();
  std::vector<uint32_t> sizes;
  if (!split_super_frame(about, frame, size, memory, sizes)) {
    ++interface.counters.refused;
    return;
  }
  ++interface.counters.split;
  size_t at = 0;
  for (const uint32_t bytes : sizes) {
    show(memory.data() + at, bytes);
    at += bytes;
  }
}

void FramePort::send(std::span<const Endpoint> to, std::span<const Segment> segments) {
  for (const Endpoint& peer : to) {
    const size_t port = peer.switch_port - size_t{1};
    if (port < by_port_.size() && by_port_[port]) send_run(*by_port_[port], segments);
  }
}

void FramePort::send_run(Interface& interface, std::span<const Segment> frames) {
  Buffers& b = *buffers_;
  const auto lose = [&](size_t count) {
    interface.counters.send_errors.add(count);
    counters_.send_errors += count;
  };
  bool waited = false;
  while (!frames.empty()) {
    const size_t count = std::min(kBatch, frames.size());
    for (size_t i = 0; i < count; ++i) {
      b.piece[i] = {const_cast<uint8_t*>(frames[i].data), frames[i].size};
      b.out[i] = {};
      b.out[i].msg_hdr.msg_iov = &b.piece[i];
      b.out[i].msg_hdr.msg_iovlen = 1;
    }
    ++counters_.send_calls;
    const int sent = sendmmsg(interface.tx.get(), b.out.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if ((errno == EAGAIN || errno == ENOBUFS) && !waited) {
        waited = true;
        pollfd full{interface.tx.get(), POLLOUT, 0};
        poll(&full, 1, kFullMs);
        continue;
      }
      if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV || errno == EAGAIN || errno == ENOBUFS) {
        lose(frames.size());
        return;
      }
      if (errno == EMSGSIZE) ++interface.counters.too_large;
      lose(1);
      frames = frames.subspan(1);
      continue;
    }
    for (int i = 0; i < sent; ++i) {
      const Segment& frame = frames[static_cast<size_t>(i)];
      interface.counters.bytes_out.add(frame.size);
      counters_.bytes_out += frame.size;
    }
    interface.counters.packets_out.add(static_cast<uint64_t>(sent));
    counters_.packets_out += static_cast<uint64_t>(sent);
    frames = frames.subspan(static_cast<size_t>(sent));
  }
}

const InterfaceName& FramePort::name(size_t index) const { return interfaces_[index]->name; }

const InterfaceCounters& FramePort::counters(size_t index) const { return interfaces_[index]->counters; }

}  // namespace switchagg
