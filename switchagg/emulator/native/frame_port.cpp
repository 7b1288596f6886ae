#include "switchagg/emulator/native/frame_port.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "switchagg/emulator/native/frame.h"
#include "switchagg/emulator/native/super_frame.h"
#include "switchagg/native/clock.h"

namespace switchagg {
namespace {

constexpr size_t kBatch = 64;               // frames in one system call
constexpr size_t kBuffers = 256;            // frames in one receive()
constexpr size_t kHeadroom = 64;            // in front of a frame: for its tag, and so that it begins on a cache line
constexpr size_t kFrameBytes = (1 << 16) + 4096;  // a super-frame and its headers
constexpr int kSendBuffer = 8 << 20;
constexpr int kFullMs = 2;                  // how long a full socket is waited for

// Not in older headers.
constexpr int kIgnoreOutgoing = 23;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

struct FramePort::Interface {
  InterfaceName name;
  Descriptor rx, tx;
  int index = 0;  // of the kernel's; 0: it is not there
  bool ready = false;
  InterfaceTallies tallies;
};

struct FramePort::Buffers {
  struct Control {
    alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(tpacket_auxdata))> bytes;
  };
  PacketMemory memory{kBuffers * kFrameBytes};
  std::array<FrameNote, kBuffers> about;
  std::array<sockaddr_ll, kBuffers> from;
  std::array<Control, kBuffers> control;
  std::array<std::array<iovec, 2>, kBuffers> pieces;
  std::array<mmsghdr, kBuffers> in;
  std::array<iovec, kBatch> piece;
  std::array<mmsghdr, kBatch> out;
  std::vector<std::vector<uint8_t>> cut;  // memory of the super-frames of the last receive()

  uint8_t* frame(size_t i) { return memory.get() + i * kFrameBytes + kHeadroom; }
};

FramePort::FramePort(std::vector<InterfaceName> interfaces, int receive_buffer)
    : receive_buffer_(receive_buffer), buffers_(std::make_unique<Buffers>()) {
  bell_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!bell_) fail(errno, "eventfd");
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) fail(errno, "epoll_create1");
  watch(bell_.get(), &bell_);
  netlink_ = Descriptor(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE));
  sockaddr_nl links{};
  links.nl_family = AF_NETLINK;
  links.nl_groups = RTMGRP_LINK;
  if (!netlink_ || bind(netlink_.get(), reinterpret_cast<sockaddr*>(&links), sizeof links) != 0) fail(errno, "netlink");
  watch(netlink_.get(), &netlink_);

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

void FramePort::watch(int fd, void* tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail(errno, "epoll_ctl");
}

int FramePort::open(Interface& interface) {
  const int index = static_cast<int>(if_nametoindex(interface.name.name.c_str()));
  if (index == 0) return ENODEV;
  // No protocol before bind(): else frames of all interfaces would come in between.
  Descriptor rx(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  Descriptor tx(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!rx || !tx) return errno;
  const int one = 1;
  if (setsockopt(rx.get(), SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) != 0 ||
      setsockopt(rx.get(), SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) != 0)
    return errno;
  setsockopt(rx.get(), SOL_PACKET, kIgnoreOutgoing, &one, sizeof one);  // before Linux 4.20 they are told by their type
  if (setsockopt(rx.get(), SOL_SOCKET, SO_RCVBUFFORCE, &receive_buffer_, sizeof receive_buffer_) != 0)
    setsockopt(rx.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_, sizeof receive_buffer_);
  if (setsockopt(tx.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBuffer, sizeof kSendBuffer) != 0)
    setsockopt(tx.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = index;
  if (bind(tx.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return errno;
  address.sll_protocol = htons(ETH_P_ALL);
  if (bind(rx.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return errno;
  packet_mreq all{};  // frames for other stations too: a switch is not whom they are addressed to
  all.mr_ifindex = index;
  all.mr_type = PACKET_MR_PROMISC;
  if (setsockopt(rx.get(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0) return errno;

  watch(rx.get(), &interface);
  interface.rx = std::move(rx);  // what was open before closes with `rx`, and leaves the epoll set
  interface.tx = std::move(tx);
  interface.index = index;
  look(interface);
  return 0;
}

// What the kernel says of an interface now.
void FramePort::look(Interface& interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface.name.name.c_str(), IFNAMSIZ - 1);
  const bool there = ioctl(netlink_.get(), SIOCGIFFLAGS, &request) == 0;
  const bool up = there && (request.ifr_flags & IFF_UP);
  if (interface.tallies.up.exchange(up) && !up) ++interface.tallies.downs;
}

bool FramePort::wait(int64_t timeout_ns) {
  // A busy interface must not hide the others: they are asked for in any case.
  const bool busy = std::any_of(interfaces_.begin(), interfaces_.end(), [](const auto& each) { return each->ready; });
  if (busy) timeout_ns = 0;
  std::array<epoll_event, 64> events;
  ++counters_.receive_calls;
  const timespec limit = timespec_of(std::max<int64_t>(timeout_ns, 0));
  int ready = epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ns < 0 ? nullptr : &limit,
                           nullptr);
  if (ready < 0 && errno == ENOSYS) {
    const int64_t ms = std::min<int64_t>((timeout_ns + 999999) / 1000000, 1000000);
    ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ns < 0 ? -1 : static_cast<int>(ms));
  }
  if (ready < 0 && errno != EINTR) fail(errno, "epoll_wait");
  for (int i = 0; i < ready; ++i) {
    void* const tag = events[static_cast<size_t>(i)].data.ptr;
    if (tag == &bell_) {
      uint64_t count;
      [[maybe_unused]] const auto n = read(bell_.get(), &count, sizeof count);
    } else if (tag == &netlink_) {
      changed_ = true;
    } else {
      static_cast<Interface*>(tag)->ready = true;
    }
  }
  return busy || ready != 0;
}

void FramePort::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(bell_.get(), &one, sizeof one);
}

void FramePort::abandon() {
  for (const auto& each : interfaces_) {
    each->rx.reset();
    each->tx.reset();
  }
  netlink_.reset();
  epoll_.reset();
  bell_.reset();
}

void FramePort::receive(std::vector<Received>& into) {
  if (changed_) {
    changed_ = false;
    std::array<uint8_t, 8192> message;
    while (recv(netlink_.get(), message.data(), message.size(), 0) > 0 || errno == ENOBUFS) errno = 0;
    for (const auto& each : interfaces_) {
      const auto index = static_cast<int>(if_nametoindex(each->name.name.c_str()));
      if (index == each->index || (index != 0 && open(*each) != 0)) look(*each);
      if (index == 0) {
        each->index = 0;
        look(*each);
      }
    }
  }
  used_ = 0;
  buffers_->cut.clear();
  const size_t count = interfaces_.size();
  turn_ = count ? (turn_ + 1) % count : 0;
  for (size_t i = 0; i < count && used_ < kBuffers; ++i) {
    Interface& interface = *interfaces_[(turn_ + i) % count];
    if (interface.ready) take(interface, into);
  }
}

void FramePort::take(Interface& interface, std::vector<Received>& into) {
  Buffers& b = *buffers_;
  const size_t room = std::min(kBatch, kBuffers - used_), first = used_;
  for (size_t i = first; i < first + room; ++i) {
    b.pieces[i] = {iovec{&b.about[i], sizeof b.about[i]}, iovec{b.frame(i), kFrameBytes - kHeadroom}};
    msghdr& message = b.in[i].msg_hdr;
    message = {};
    message.msg_name = &b.from[i];
    message.msg_namelen = sizeof b.from[i];
    message.msg_iov = b.pieces[i].data();
    message.msg_iovlen = b.pieces[i].size();
    message.msg_control = b.control[i].bytes.data();
    message.msg_controllen = b.control[i].bytes.size();
  }
  ++counters_.receive_calls;
  const int got = recvmmsg(interface.rx.get(), b.in.data() + first, static_cast<unsigned>(room), MSG_DONTWAIT, nullptr);
  if (got < 0) {
    // EINVAL: a super-frame of a kind that the kernel has no name for here. Down or away: netlink tells.
    if (errno == EINVAL) ++interface.tallies.refused;
    else if (errno != ENETDOWN && errno != EINTR) interface.ready = false;
    return;
  }
  interface.ready = static_cast<size_t>(got) == room;
  used_ += static_cast<size_t>(got);
  const auto place = static_cast<uint16_t>(interface.name.port + 1);
  for (size_t i = first; i < used_; ++i) {
    const mmsghdr& message = b.in[i];
    if (b.from[i].sll_pkttype == PACKET_OUTGOING || message.msg_len < sizeof(FrameNote)) continue;
    if (message.msg_hdr.msg_flags & MSG_TRUNC) {
      ++interface.tallies.refused;
      continue;
    }
    auto size = static_cast<uint32_t>(message.msg_len - sizeof(FrameNote));
    uint8_t* frame = b.frame(i);
    const FrameNote& about = b.about[i];
    uint32_t tag = 0;  // EtherType and tag, where there is one
    for (const cmsghdr* c = CMSG_FIRSTHDR(&message.msg_hdr); c; c = CMSG_NXTHDR(const_cast<msghdr*>(&message.msg_hdr), const_cast<cmsghdr*>(c))) {
      if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
      tpacket_auxdata aux;
      std::memcpy(&aux, CMSG_DATA(c), sizeof aux);
      if (aux.tp_status & TP_STATUS_VLAN_VALID)
        tag = (aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? uint32_t{aux.tp_vlan_tpid} : 0x8100u) << 16 | aux.tp_vlan_tci;
    }
    const auto pass = [&](uint8_t* data, uint32_t bytes) {
      into.push_back(Received::whole(data, bytes, {0, 0, place}));
      ++interface.tallies.packets_in;
      interface.tallies.bytes_in.add(bytes);
      ++counters_.packets_in;
      counters_.bytes_in += bytes;
    };
    if (about.gso_type == 0 && (about.flags & FrameNote::kNeedsChecksum))
      complete_checksum(frame, size, about.checksum_start, about.checksum_offset);
    FrameNote shifted = about;
    if (tag && size >= 12) {
      frame -= kTagBytes;
      std::memmove(frame, frame + kTagBytes, 12);
      wire::store32(frame + 12, tag);
      size += kTagBytes;
      shifted.checksum_start = static_cast<uint16_t>(shifted.checksum_start + kTagBytes);
    }
    if (about.gso_type == 0) {
      pass(frame, size);
      continue;
    }
    std::vector<uint8_t>& memory = b.cut.emplace_back();
    std::vector<uint32_t> sizes;
    if (!split_super_frame(shifted, frame, size, memory, sizes)) {
      ++interface.tallies.refused;
      continue;
    }
    ++interface.tallies.split;
    size_t at = 0;
    for (const uint32_t bytes : sizes) {
      pass(memory.data() + at, bytes);
      at += bytes;
    }
  }
  tpacket_stats stats{};
  socklen_t length = sizeof stats;
  if (interface.ready && getsockopt(interface.rx.get(), SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0)
    interface.tallies.missed.add(stats.tp_drops);
}

void FramePort::send(std::span<const Endpoint> to, std::span<const Segment> segments) {
  for (const Endpoint& peer : to) {
    const size_t port = peer.place - size_t{1};
    if (port < by_port_.size() && by_port_[port]) send_run(*by_port_[port], segments);
  }
}

void FramePort::send_run(Interface& interface, std::span<const Segment> frames) {
  Buffers& b = *buffers_;
  const auto lose = [&](size_t count) {
    interface.tallies.send_errors.add(count);
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
      if (errno == EMSGSIZE) ++interface.tallies.too_large;
      lose(1);
      frames = frames.subspan(1);
      continue;
    }
    for (int i = 0; i < sent; ++i) {
      const Segment& frame = frames[static_cast<size_t>(i)];
      interface.tallies.bytes_out.add(frame.size);
      counters_.bytes_out += frame.size;
    }
    interface.tallies.packets_out.add(static_cast<uint64_t>(sent));
    counters_.packets_out += static_cast<uint64_t>(sent);
    frames = frames.subspan(static_cast<size_t>(sent));
  }
}

const InterfaceName& FramePort::name(size_t index) const { return interfaces_[index]->name; }

const InterfaceTallies& FramePort::tallies(size_t index) const { return interfaces_[index]->tallies; }

}  // namespace switchagg
