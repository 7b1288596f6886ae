// An Ethernet switch as a Port of datagrams around a Port of frames.
//
//                     datagrams                            frames: peers are ports of the switch (Endpoint::switch_port)
//      switch loop  <----------->  EtherPort { tables }  <--->  [capture]  <->  [faults]  <->  FramePort
//                                   |     ^
//                                   +-----+  receive() also forwards frames that are not for the switch, and answers ARP
//                                            and echo requests
//
// Upward go the payloads of UDP datagrams for the switch's own address and port; a peer is an address, a UDP port and a
// port of the switch. Downward each datagram gets Ethernet, IPv4 and UDP headers: from the address that the last datagram
// was sent to, to the MAC that set_neighbour() gave. Unknown neighbours are dropped and counted (`unaddressed`).
//
// Any thread may change the tables, read counters, and send frames; everything else belongs to the loop's thread.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "switchagg/native/switch/concurrency.h"
#include "switchagg/native/switch/frame_tables.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

struct EtherCounters {
  uint64_t own_source = 0;    // dropped: the source address is the switch's own
  uint64_t answered_arp = 0, answered_echo = 0;
  uint64_t admitted = 0;      // packets of the protocol for the switch
  uint64_t local_dropped = 0; // dropped: for the switch or link-local, and not served
  uint64_t forwarded = 0, flooded = 0;
  uint64_t unknown = 0;       // dropped: the station is in no table, and the default is to drop
  uint64_t returned = 0;      // dropped: the station is behind the port that the frame came from
  uint64_t malformed = 0;     // dropped: they end within a header
  uint64_t unaddressed = 0;   // dropped: no neighbour has the address
  uint64_t no_such_port = 0;  // dropped: for a port that the switch does not have
};

class EtherPort : public Port {
 public:
  // ports: of the switch. controller_port: for frames of the controller; not one of `ports`.
  EtherPort(std::unique_ptr<Port> frames, std::vector<uint16_t> ports, uint16_t udp_port, uint16_t controller_port);

  bool wait(int64_t timeout_ns) override { return frames_->wait(timeout_ns); }
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override { frames_->wake(); }
  void abandon() override { frames_->abandon(); }
  Endpoint local() const override { return {}; }
  const PortCounters& counters() const override;

  template <typename Function>
  decltype(auto) with_tables(Function&& function) {
    std::lock_guard<FairMutex> guard(lock_);
    return function(tables_);
  }
  void set_neighbour(Endpoint endpoint, uint64_t mac);  // one more job has it
  void drop_neighbour(Endpoint endpoint);               // one fewer
  EtherCounters ether_counters();

  // Frames of the controller, from any thread. send_frame() sends one unchanged from a port; false if there is no such
  // port. inject() processes one as if it had come in at the controller's port.
  bool send_frame(uint16_t port, std::span<const uint8_t> frame);
  struct Injected {
    std::optional<std::vector<uint8_t>> admitted;  // the UDP payload of a packet of the protocol
    std::vector<std::vector<uint8_t>> returned;    // frames that leave by the controller's port
  };
  Injected inject(std::span<const uint8_t> frame);

  static uint16_t endpoint_port(uint16_t port) { return static_cast<uint16_t>(port + 1); }

 private:
  using Bytes = std::vector<uint8_t>;
  struct Neighbour {
    uint64_t mac;
    uint32_t jobs;
  };

  void on_frame(const Received& frame, std::vector<Received>& into);
  // Applies the tables to a frame. True for a packet of the protocol, which the caller processes.
  bool forward(const FrameView& view, Segment frame, uint16_t from);
  void send_later(uint16_t port, Segment frame);
  void send_run(uint16_t port, std::vector<Segment>& frames);

  std::unique_ptr<Port> frames_;
  std::vector<uint16_t> ports_;
  const uint16_t udp_port_, controller_port_;
  PortCounters counters_;  // of datagrams
  mutable PortCounters total_;

  FairMutex lock_;  // of what is below
  FrameTables tables_;
  EtherCounters ether_;
  UdpAddress own_;
  std::unordered_map<uint64_t, Neighbour> neighbours_;
  std::unordered_map<uint16_t, std::vector<Segment>> leaving_;  // by port
  std::vector<std::pair<uint16_t, Bytes>> waiting_;             // frames of other threads
  std::vector<Bytes> kept_;                                     // behind frames to send, until they are sent
  Injected* injected_ = nullptr;                                // while inject() processes a frame

  // The loop's own.
  std::vector<Received> arrived_;
  PacketMemory made_;
  std::vector<Segment> run_;
};

}  // namespace switchagg
