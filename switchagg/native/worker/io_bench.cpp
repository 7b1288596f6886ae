#include "switchagg/native/worker/io_bench.h"

#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <optional>
#include <vector>

#include "switchagg/native/shared/clock.h"

namespace switchagg {
namespace {

constexpr int64_t kAnswerNs = 200'000'000;     // between two answers of a receiver
constexpr int64_t kIntroductionNs = 5'000'000;  // between two packets of a sender that has no answer yet
constexpr int64_t kPatienceNs = 10'000'000'000;
constexpr uint32_t kWindow = 256;              // different packets, as an engine has in flight
constexpr uint64_t kFloorMac = 0x020000000001;

int64_t processor_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

class Stopwatch {
 public:
  int64_t wall() const { return now_ns() - wall_; }
  void stop(IoFigures& figures) const {
    figures.wall_ns = wall();
    figures.processor_ns = processor_ns() - processor_;
  }

 private:
  int64_t wall_ = now_ns(), processor_ = processor_ns();
};

std::unique_ptr<Port> port_of(std::unique_ptr<UdpPort>& udp, const std::shared_ptr<FrameHost>& host, Endpoint local) {
  if (host) return std::make_unique<DatagramPort>(host, udp, local, std::nullopt);
  return std::move(udp);
}

// The floor of a kernel's socket: messages that were laid out before, with UDP_SEGMENT if a batch is larger than one.
void bare_udp_send(const UdpPort& udp, Endpoint to, uint32_t bytes, uint32_t batch, int64_t ns, IoFigures& figures) {
  std::vector<uint8_t> data(size_t{bytes} * batch);
  iovec piece{data.data(), data.size()};
  SocketAddress address(to);
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint16_t))] = {};
  msghdr message{};
  message.msg_name = address.get();
  message.msg_namelen = address.size();
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (batch > 1) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_UDP;
    c->cmsg_type = 103;  // UDP_SEGMENT
    c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto size = static_cast<uint16_t>(bytes);
    std::memcpy(CMSG_DATA(c), &size, sizeof size);
  }
  const Stopwatch watch;
  while (watch.wall() < ns)
    if (sendmsg(udp.descriptor(), &message, 0) > 0) figures.packets += batch;
  watch.stop(figures);
}

void bare_udp_receive(const UdpPort& udp, int64_t ns, IoFigures& figures) {
  constexpr size_t kMessages = 64;
  std::vector<uint8_t> data(kMessages * 65536);
  std::array<mmsghdr, kMessages> in{};
  std::array<iovec, kMessages> pieces;
  for (size_t i = 0; i < kMessages; ++i) {
    pieces[i] = {data.data() + i * 65536, 65536};
    in[i].msg_hdr.msg_iov = &pieces[i];
    in[i].msg_hdr.msg_iovlen = 1;
  }
  pollfd waiting{udp.descriptor(), POLLIN, 0};
  if (poll(&waiting, 1, kPatienceNs / 1'000'000) <= 0) return;
  const Stopwatch watch;
  while (watch.wall() < ns) {
    const int count = recvmmsg(udp.descriptor(), in.data(), kMessages, MSG_DONTWAIT, nullptr);
    for (int i = 0; i < count; ++i) figures.bytes += in[i].msg_len;
    if (count <= 0 && poll(&waiting, 1, 100) == 0 && watch.wall() > kPatienceNs) break;
  }
  watch.stop(figures);
}

// The floor of a frame device: a frame with its headers and checksums is copied, no more.
void bare_device_send(FrameHost& host, Endpoint local, Endpoint to, uint32_t bytes, uint32_t batch, int64_t ns, IoFigures& figures) {
  FrameDevice& device = host.device();
  std::vector<uint8_t> frame(kUdpHeadersBytes + bytes);
  write_udp_headers(frame.data(), {device.mac(0), local.ip, local.port}, {kFloorMac, to.ip, to.port}, bytes);
  complete_udp_checksum(frame.data(), ones_sum(frame.data() + kUdpHeadersBytes, bytes));
  const Stopwatch watch;
  while (watch.wall() < ns) {
    for (uint32_t i = 0; i < batch; ++i) {
      uint8_t* const at = device.reserve(0, static_cast<uint32_t>(frame.size()));
      if (!at) break;
      std::memcpy(at, frame.data(), frame.size());
      ++figures.packets;
    }
    device.flush();
  }
  watch.stop(figures);
}

void bare_device_receive(FrameHost& host, Endpoint local, int64_t ns, IoFigures& figures) {
  FrameDevice& device = host.device();
  device.open(local);
  if (device.wait({}, kPatienceNs)) {
    std::vector<DeviceFrame> frames;
    const Stopwatch watch;
    while (watch.wall() < ns) {
      frames.clear();
      device.receive(frames);
      for (const DeviceFrame& frame : frames) figures.bytes += frame.size - kUdpHeadersBytes;
      figures.packets += frames.size();
      device.release(frames);
      if (frames.empty() && !device.wait({}, 100'000'000) && watch.wall() > kPatienceNs) break;
    }
    watch.stop(figures);
  }
  device.close(local);
}

}  // namespace

IoFigures send_for(std::unique_ptr<UdpPort> udp, std::shared_ptr<FrameHost> host, Endpoint local, Endpoint to, uint32_t bytes,
                   uint32_t batch, int64_t ns, bool bare) {
  IoFigures figures;
  if (bare && host) {
    bare_device_send(*host, local, to, bytes, batch, ns, figures);
  } else if (bare) {
    bare_udp_send(*udp, to, bytes, batch, ns, figures);
  } else {
    const auto port = port_of(udp, host, local);
    const PacketMemory data(size_t{bytes} * kWindow);
    std::vector<Segment> segments;
    for (uint32_t i = 0; i < kWindow; ++i) segments.push_back({data.get() + size_t{i} * bytes, bytes});
    std::vector<Received> answers;
    const auto listen = [&](int64_t timeout) {
      answers.clear();
      if (port->wait(timeout)) port->receive(answers);
      return !answers.empty();
    };
    const Stopwatch patience;
    do {
      port->send({&to, 1}, std::span(segments).first(1));
    } while (!listen(kIntroductionNs) && patience.wall() < kPatienceNs);
    const Stopwatch watch;
    for (uint32_t at = 0; watch.wall() < ns; at = (at + batch) % kWindow) {
      if (at + batch > kWindow) at = 0;
      port->send({&to, 1}, std::span(segments).subspan(at, batch));
      figures.packets += batch;
      if (at == 0) listen(0);
    }
    watch.stop(figures);
  }
  figures.bytes = figures.packets * bytes;
  return figures;
}

IoFigures receive_for(std::unique_ptr<UdpPort> udp, std::shared_ptr<FrameHost> host, Endpoint local, int64_t ns, bool bare) {
  IoFigures figures;
  if (bare && host) {
    bare_device_receive(*host, local, ns, figures);
    return figures;
  }
  if (bare) {
    bare_udp_receive(*udp, ns, figures);
    return figures;
  }
  const auto port = port_of(udp, host, local);
  std::vector<Received> arrived;
  const uint8_t answer[wire::kHeaderBytes] = {};
  const Segment answers[] = {{answer, sizeof answer}};
  int64_t answered = 0;
  std::optional<Stopwatch> watch;
  const Stopwatch patience;
  while (watch ? watch->wall() < ns : patience.wall() < kPatienceNs) {
    arrived.clear();
    port->wait(100'000'000);
    port->receive(arrived);
    for (const Received& each : arrived) figures.bytes += each.size;
    figures.packets += arrived.size();
    if (arrived.empty()) continue;
    if (!watch && arrived.size() > 1) {  // more than an introduction
      watch.emplace();
      figures = {};
    }
    if (const int64_t now = now_ns(); now - answered > kAnswerNs || !watch) {
      answered = now;
      port->send({&arrived[0].peer, 1}, answers);
    }
  }
  if (watch) watch->stop(figures);
  return figures;
}

}  // namespace switchagg
