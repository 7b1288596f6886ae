#include "switchagg/native/shared/udp_port.h"

#include <linux/filter.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/link.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace switchagg {
namespace {

constexpr size_t kReceiveSlots = 8;          // datagram trains taken by one recvmmsg
constexpr size_t kReceiveBytes = 65536;
constexpr size_t kPlainReceiveSlots = 64;    // single datagrams, without GRO
constexpr size_t kPlainReceiveBytes = 65536 + 192;  // unused pages cost nothing; 192: not all in the same cache sets
constexpr size_t kSendMessages = 64;         // messages in one sendmmsg

union Control {  // the size of a train's datagrams, and ECN
  cmsghdr align;
  char bytes[2 * CMSG_SPACE(sizeof(int))];
};

template <typename T>
void append(msghdr& message, Control& control, int level, int type, T value) {
  auto* const c = reinterpret_cast<cmsghdr*>(control.bytes + message.msg_controllen);
  message.msg_control = control.bytes;
  message.msg_controllen += CMSG_SPACE(sizeof value);
  c->cmsg_level = level;
  c->cmsg_type = type;
  c->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(c), &value, sizeof value);
}

void append_ecn(msghdr& message, Control& control, Endpoint to, int ecn) {
  if (is_ipv6(to.ip)) {
    append(message, control, IPPROTO_IPV6, IPV6_TCLASS, ecn);
  } else {
    append(message, control, IPPROTO_IP, IP_TOS, ecn);
  }
}

bool is_ce(cmsghdr* c) {
  int field = 0;
  if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) field = *CMSG_DATA(c);
  if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) std::memcpy(&field, CMSG_DATA(c), sizeof field);
  return (field & kEcnMask) == kCe;
}

// One message of several datagrams, which the kernel is to cut.
bool is_train(const msghdr& m) {
  const cmsghdr* first = CMSG_FIRSTHDR(&m);
  return first && first->cmsg_level == SOL_UDP && first->cmsg_type == UDP_SEGMENT;
}

// The block of a packet's slot, of so many slots each; 0 is one block of all.
uint32_t block_of(const Segment& packet, uint32_t slots) {
  return !slots || packet.size < wire::kHeaderBytes ? 0 : wire::load16(packet.data + wire::kSlotOffset) / slots;
}

}  // namespace

struct UdpPort::Buffers {
  // Receiving.
  PacketMemory bytes;
  std::vector<mmsghdr> in;
  std::vector<iovec> in_iov;
  std::vector<SocketAddress> in_from;
  std::vector<Control> in_control;
  // Sending.
  std::array<mmsghdr, kSendMessages> out{};
  std::array<Control, kSendMessages> out_control{};
  std::array<SocketAddress, kSendMessages> out_to;
  std::vector<iovec> out_iov;
  size_t pending = 0;  // messages in `out`

  Buffers(size_t slots, size_t each)
      : bytes(slots * each), in(slots), in_iov(slots), in_from(slots), in_control(slots) {
    for (size_t i = 0; i < slots; ++i) {
      in_iov[i] = {bytes.get() + i * each, each};
      in[i].msg_hdr.msg_iov = &in_iov[i];
      in[i].msg_hdr.msg_iovlen = 1;
      in[i].msg_hdr.msg_name = in_from[i].get();
    }
  }
};

UdpPort::UdpPort(const UdpOptions& options)
    : family_(SocketAddress::family_of(options.bind)),
      show_strangers_(options.show_strangers),
      socket_(socket(family_, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  if (!socket_) fail("socket");
  const int fd = socket_.get();
  SocketAddress address(options.bind);
  const int on = 1, off = 0;
  if (family_ == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) fail("IPV6_V6ONLY");
  if (options.share_address && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) fail("SO_REUSEPORT");
  if (bind(fd, address.get(), address.size()) != 0) fail("bind");
  socklen_t length = SocketAddress::kLargest;
  if (getsockname(fd, address.get(), &length) != 0) fail("getsockname");
  local_ = address.endpoint();
  wake_up_ = make_wake_up();
  also_wait_for({});
  receive_buffer_ = enlarge_buffer(fd, SO_RCVBUF, SO_RCVBUFFORCE, options.receive_buffer);
  enlarge_buffer(fd, SO_SNDBUF, SO_SNDBUFFORCE, options.send_buffer);
  if (options.offload) {
    gso_ = setsockopt(fd, SOL_UDP, UDP_SEGMENT, &off, sizeof off) == 0;
    gro_ = setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
  }
  buffers_ = gro_ ? std::make_unique<Buffers>(kReceiveSlots, kReceiveBytes)
                  : std::make_unique<Buffers>(kPlainReceiveSlots, kPlainReceiveBytes);
}

UdpPort::~UdpPort() = default;

void UdpPort::steer_by_slot(uint32_t sockets) {
  static_assert(std::has_single_bit(wire::kBlockSlots));
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, wire::kSlotOffset),  // 0 is returned where the packet is shorter
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, std::countr_zero(wire::kBlockSlots)),
      BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, sockets),
      BPF_STMT(BPF_RET | BPF_A, 0),
  };
  const sock_fprog program{std::size(code), code};
  if (setsockopt(socket_.get(), SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) != 0)
    fail("SO_ATTACH_REUSEPORT_CBPF");
}

void UdpPort::connect(Endpoint peer) {
  SocketAddress address(peer, family_);
  if (::connect(socket_.get(), address.get(), address.size()) != 0) fail("connect");
  socklen_t length = SocketAddress::kLargest;
  if (getsockname(socket_.get(), address.get(), &length) == 0) local_ = address.endpoint();
  peer_ = peer;
}

// Not called where nobody sends ECT packets: no queue marks any, and reading the field would cost time.
void UdpPort::read_ecn() {
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
  if (family_ == AF_INET6) setsockopt(socket_.get(), IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on);
  reads_ecn_ = true;
}

bool UdpPort::wait(int64_t timeout_ns) {
  int ready = 0;
  const auto found = [&](int64_t limit_ns) {
    const timespec limit = timespec_of(limit_ns);
    ready = ppoll(waited_for_.data(), waited_for_.size(), limit_ns >= 0 ? &limit : nullptr, nullptr);
    return ready != 0;
  };
  if (!busy_poll_ || timeout_ns == 0 || !link::busy_poll(true, [&found] { return found(0); })) found(timeout_ns);
  if (ready > 0 && (waited_for_[1].revents & POLLIN)) clear_wake_up(wake_up_.get());
  return ready != 0;
}

void UdpPort::also_wait_for(std::vector<int> descriptors) {
  waited_for_ = {{socket_.get(), POLLIN, 0}, {wake_up_.get(), POLLIN, 0}};
  for (int each : descriptors) waited_for_.push_back({each, POLLIN, 0});
}

void UdpPort::receive(std::vector<Received>& into) {
  Buffers& b = *buffers_;
  const size_t slots = b.in.size();
  const bool controlled = gro_ || reads_ecn_;
  for (size_t i = 0; i < slots; ++i) {
    b.in[i].msg_hdr.msg_namelen = SocketAddress::kLargest;
    b.in[i].msg_hdr.msg_control = controlled ? &b.in_control[i] : nullptr;
    b.in[i].msg_hdr.msg_controllen = controlled ? sizeof(Control) : 0;
  }
  ++counters_.receive_calls;
  int count = recvmmsg(socket_.get(), b.in.data(), static_cast<unsigned>(slots), MSG_DONTWAIT, nullptr);
  if (count < 0) {
    if (errno == ECONNREFUSED) ++counters_.refused;
    return;
  }
  for (int i = 0; i < count; ++i) {
    const msghdr& m = b.in[i].msg_hdr;
    size_t total = b.in[i].msg_len;
    size_t step = total;
    bool marked = false;
    for (cmsghdr* c = controlled ? CMSG_FIRSTHDR(&m) : nullptr; c; c = CMSG_NXTHDR(const_cast<msghdr*>(&m), c)) {
      if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
        int segment;
        std::memcpy(&segment, CMSG_DATA(c), sizeof segment);
        if (segment > 0) step = static_cast<size_t>(segment);
      }
      marked |= is_ce(c);
    }
    const Endpoint peer = peer_ ? *peer_ : show_strangers_ ? b.in_from[i].added() : b.in_from[i].endpoint();
    const uint8_t* data = static_cast<uint8_t*>(m.msg_iov->iov_base);
    counters_.bytes_in += total;
    size_t at = 0;
    do {  // a datagram may be empty
      size_t size = total - at < step ? total - at : step;
      if (marked) take_up_ce(data + at, static_cast<uint32_t>(size));
      into.push_back(Received::whole(data + at, static_cast<uint32_t>(size), peer));
      ++counters_.packets_in;
      at += size;
    } while (at < total);
  }
}

// The next message to send, without iovec and control data. The caller flushes before the array is full.
msghdr& UdpPort::next_message(Endpoint to) {
  Buffers& b = *buffers_;
  msghdr& m = b.out[b.pending].msg_hdr;
  m = {};
  if (!peer_) {
    SocketAddress& address = b.out_to[b.pending] = SocketAddress(to, family_);
    m.msg_name = address.get();
    m.msg_namelen = address.size();
  }
  ++b.pending;
  return m;
}

// Sends the pending messages. If the route cannot segment, switches gso_ off and leaves the rest to the caller.
void UdpPort::flush() {
  Buffers& b = *buffers_;
  size_t done = 0;
  while (done < b.pending) {
    ++counters_.send_calls;
    const int sent = sendmmsg(socket_.get(), b.out.data() + done, static_cast<unsigned>(b.pending - done), 0);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
      continue;
    }
    const int error = errno;
    if (error == EINTR) continue;
    if (error == ECONNREFUSED) {  // an answer to an earlier datagram; the error is cleared by reporting it
      ++counters_.refused;
      continue;
    }
    if (error == EAGAIN || error == ENOBUFS) {
      pollfd wait{socket_.get(), POLLOUT, 0};
      if (poll(&wait, 1, 100) > 0 && error == EAGAIN) continue;
    }
    if ((error == EINVAL || error == EIO || error == EOPNOTSUPP) && gso_ && is_train(b.out[done].msg_hdr)) {
      gso_ = false;  // from now on datagram by datagram
      break;
    }
    ++counters_.send_errors;
    ++done;
  }
  b.pending = 0;
}

void UdpPort::send(std::span<const Endpoint> to, std::span<const Segment> segments) {
  if (to.empty() || segments.empty()) return;
  if (!gso_) return send_plain(to, segments);
  Buffers& b = *buffers_;
  // Cut the segments into trains of equal size (the last of a train may be shorter), contiguous ones in one iovec.
  struct Train {
    size_t iov, iovs, count;
    uint32_t size;
    size_t bytes;
    uint8_t ecn;
  };
  std::array<Train, kSendMessages> trains;
  size_t at = 0;
  while (at < segments.size()) {
    b.out_iov.clear();
    size_t made = 0;
    while (at < segments.size() && made < kSendMessages) {
      Train t{b.out_iov.size(), 0, 0, segments[at].size, 0, ecn_of(segments[at])};
      if (t.ecn && !reads_ecn_) read_ecn();
      const uint32_t block = block_of(segments[at], block_);
      const uint8_t* end = nullptr;
      while (at < segments.size() && t.count < kMaxSegments) {
        const Segment& s = segments[at];
        if (s.size > t.size || t.bytes + s.size > kMaxBatchBytes) {
          if (t.count) break;  // a single oversized datagram is left to the kernel to refuse
        }
        if (block_of(s, block_) != block || ecn_of(s) != t.ecn) break;
        if (s.data == end) {
          b.out_iov.back().iov_len += s.size;
        } else {
          b.out_iov.push_back({const_cast<uint8_t*>(s.data), s.size});
          ++t.iovs;
        }
        end = s.data + s.size;
        t.bytes += s.size;
        ++t.count;
        ++at;
        if (s.size < t.size) break;
      }
      trains[made++] = t;
    }
    for (const Endpoint& e : to) {
      for (size_t i = 0; i < made; ++i) {
        const Train& t = trains[i];
        msghdr& m = next_message(e);
        m.msg_iov = b.out_iov.data() + t.iov;
        m.msg_iovlen = t.iovs;
        Control& control = b.out_control[b.pending - 1];
        if (t.count > 1) append(m, control, SOL_UDP, UDP_SEGMENT, static_cast<uint16_t>(t.size));
        if (t.ecn) append_ecn(m, control, e, t.ecn);
        counters_.packets_out += t.count;
        counters_.bytes_out += t.bytes;
        if (b.pending == kSendMessages) flush();
        if (!gso_) return send_plain(to, segments);  // receivers drop duplicates
      }
    }
    flush();
    if (!gso_) return send_plain(to, segments);
  }
}

void UdpPort::send_plain(std::span<const Endpoint> to, std::span<const Segment> segments) {
  Buffers& b = *buffers_;
  b.out_iov.resize(kSendMessages);
  for (const Endpoint& e : to) {
    for (const Segment& s : segments) {
      msghdr& m = next_message(e);
      iovec& iov = b.out_iov[b.pending - 1];
      iov = {const_cast<uint8_t*>(s.data), s.size};
      m.msg_iov = &iov;
      m.msg_iovlen = 1;
      if (const uint8_t ecn = ecn_of(s)) {
        if (!reads_ecn_) read_ecn();
        append_ecn(m, b.out_control[b.pending - 1], e, ecn);
      }
      ++counters_.packets_out;
      counters_.bytes_out += s.size;
      if (b.pending == kSendMessages) flush();
    }
  }
  flush();
}

}  // namespace switchagg
