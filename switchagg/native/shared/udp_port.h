// A UDP socket as a Port: batches of equal datagrams go out in one UDP_SEGMENT (GSO) call and come in through UDP_GRO;
// without these, sendmmsg and recvmmsg.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <optional>

#include "switchagg/native/shared/port.h"

namespace switchagg {

struct UdpOptions {
  Endpoint bind;                    // port 0: any free one
  int receive_buffer = 8 << 20;     // bytes asked for
  int send_buffer = 4 << 20;
  bool offload = true;              // try UDP_SEGMENT and UDP_GRO
};

class UdpPort : public Port {
 public:
  explicit UdpPort(const UdpOptions& options);  // throws std::system_error
  ~UdpPort() override;
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  void connect(Endpoint peer);  // from now on only this peer's datagrams are received; throws std::system_error
  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override;
  Endpoint local() const override { return local_; }
  const PortCounters& counters() const override { return counters_; }

  int descriptor() const { return fd_; }
  int receive_buffer() const { return receive_buffer_; }  // bytes of datagrams that the kernel will hold
  bool gso() const { return gso_; }
  bool gro() const { return gro_; }
  void abandon() override { close_descriptors(); }

 private:
  struct Buffers;
  void close_descriptors();
  msghdr& next_message(Endpoint to);
  void flush();
  void send_plain(std::span<const Endpoint> to, std::span<const Segment> segments);

  int fd_ = -1, event_ = -1;
  Endpoint local_;
  std::optional<Endpoint> peer_;
  int receive_buffer_ = 0;
  bool gso_ = false, gro_ = false;
  PortCounters counters_;
  std::unique_ptr<Buffers> buffers_;
};

// At most this many datagrams and bytes travel in one UDP_SEGMENT call. A packet that with its Ethernet, IP and UDP headers
// (42 bytes) reaches an interface's gso_max_size, 65,536, is cut up in software on its way out, even on loopback, and the
// receiver then takes it in datagram by datagram.
inline constexpr size_t kMaxSegments = 64;
inline constexpr size_t kMaxBatchBytes = 65535 - 42;

}  // namespace switchagg
