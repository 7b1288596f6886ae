// A UDP socket as a Port: batches of equal datagrams go out in one UDP_SEGMENT (GSO) call and come in through UDP_GRO;
// without these, sendmmsg and recvmmsg.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <optional>

#include "switchagg/native/shared/descriptor.h"
#include "switchagg/native/shared/ip_address.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

struct UdpOptions {
  Endpoint bind;                    // port 0: any free one; at ::, packets of IPv4 come too
  int receive_buffer = 8 << 20;     // bytes asked for
  int send_buffer = 4 << 20;
  bool offload = true;              // try UDP_SEGMENT and UDP_GRO
  bool share_address = false;       // with other sockets that ask for it too (SO_REUSEPORT)
  bool show_strangers = false;      // give received datagrams their source also where nobody has named its IPv6 address
};

class UdpPort : public Port {
 public:
  explicit UdpPort(const UdpOptions& options);  // throws std::system_error
  ~UdpPort() override;

  // Of `sockets` that share an address: the one with the number `slot / kBlockSlots % sockets`, in the order of their binding,
  // gets a packet with this slot; without a slot, the first. Throws std::system_error.
  void steer_by_slot(uint32_t sockets);
  // A train that is sent has slots of one block of so many, so that whole trains are steered. Else trains end where they are full.
  void cut_at_blocks(uint32_t slots) { block_ = slots; }

  void connect(Endpoint peer);  // from now on only this peer's datagrams are received; throws std::system_error
  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override { signal_wake_up(wake_up_.get()); }
  void set_busy_poll(bool yes) override { busy_poll_ = yes; }
  Endpoint local() const override { return local_; }
  const PortCounters& counters() const override { return counters_; }

  int descriptor() const override { return socket_.get(); }
  void also_wait_for(std::vector<int> descriptors) override;
  int receive_buffer() const { return receive_buffer_; }  // bytes of datagrams that the kernel will hold
  bool gso() const { return gso_; }
  bool gro() const { return gro_; }
  void abandon() override {
    socket_.reset();
    wake_up_.reset();
  }

 private:
  struct Buffers;
  msghdr& next_message(Endpoint to);
  void flush();
  void send_plain(std::span<const Endpoint> to, std::span<const Segment> segments);
  void read_ecn();

  const sa_family_t family_;
  const bool show_strangers_;
  Descriptor socket_, wake_up_;
  Endpoint local_;
  std::optional<Endpoint> peer_;
  int receive_buffer_ = 0;
  bool gso_ = false, gro_ = false;
  bool reads_ecn_ = false;  // from the first packet on that was sent as ECT
  uint32_t block_ = 0;
  bool busy_poll_ = false;
  std::vector<pollfd> waited_for_;  // the socket, the wake-up, and others
  PortCounters counters_;
  std::unique_ptr<Buffers> buffers_;
};

// The most datagrams and bytes of one UDP_SEGMENT call. A train that reaches an interface's gso_max_size, 65,536, with its
// headers (Ethernet, IPv6 and UDP: 62 bytes) is segmented in software, even on loopback, and received datagram by datagram.
inline constexpr size_t kMaxSegments = 64;
inline constexpr size_t kMaxBatchBytes = 65535 - 62;

}  // namespace switchagg
