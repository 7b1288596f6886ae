// An Ethernet switch's treatment of frames, as a Port of datagrams round a Port of frames.
//
//                     datagrams                            frames: peers are ports of the switch (Endpoint::place)
//      switch loop  <----------->  EtherPort { tables }  <--->  [capture]  <->  [faults]  <->  FramePort
//                                   |     ^
//                                   +-----+  what is not for the switch goes out again in receive(), answers to ARP and
//                                            echo requests too
//
// Upward go the payloads of UDP datagrams to the switch's own address and port, from a peer that is address, port and
// place. Downward each datagram gets Ethernet, IPv4 and UDP headers: from the address that the last one was sent to, to the
// MAC that set_neighbour() has told. Whom nobody has told of gets nothing, and it is counted.
//
// Any thread may change the tables, count, and have frames sent; all else is the loop's.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "switchagg/native/switch/fair_mutex.h"
#include "switchagg/native/switch/frame_tables.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

struct EtherCounters {
  uint64_t own_source = 0;    // dropped: claimed to come from the switch
  uint64_t answered_arp = 0, answered_echo = 0;
  uint64_t admitted = 0;      // packets of the protocol for the switch
  uint64_t local_dropped = 0; // for the switch, or for neighbours on a link, and nothing that is served
  uint64_t forwarded = 0, flooded = 0;
  uint64_t unknown = 0;       // dropped: their station is in no table, and the default is to drop
  uint64_t returned = 0;      // dropped: their station is where they came from
  uint64_t malformed = 0;     // dropped: they end before their headers do
  uint64_t unaddressed = 0;   // answers for which nobody is known
  uint64_t no_such_port = 0;  // frames for a port that the switch has not
};

class EtherPort : public Port {
 public:
  // ports: of the switch. controller_port: where the controller's frames come in; not among them.
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

  // From the controller, by any thread. By a port: out there as it is, false where there is none. From the controller's
  // port: through the switch, which may give a packet of the protocol that is for it, or frames back.
  bool send_frame(uint16_t port, std::span<const uint8_t> frame);
  struct Injected {
    std::optional<std::vector<uint8_t>> admitted;  // the UDP payload
    std::vector<std::vector<uint8_t>> returned;    // what leaves by the controller's port
  };
  Injected inject(std::span<const uint8_t> frame);

  static uint16_t place_of(uint16_t port) { return static_cast<uint16_t>(port + 1); }

 private:
  using Bytes = std::vector<uint8_t>;
  struct Neighbour {
    uint64_t mac;
    uint32_t jobs;
  };

  void take(const Received& frame, std::vector<Received>& into);
  // What becomes of a frame; a packet of the protocol for the switch is left to the caller.
  bool treat(const FrameView& view, Segment frame, uint16_t from);
  void leave(uint16_t port, Segment frame);
  Segment keep(Bytes bytes);
  void send_leaving();
  void send_run(uint16_t port);

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
  std::vector<std::pair<uint16_t, Bytes>> waiting_;             // of other threads
  std::vector<Bytes> kept_;                                     // behind what leaves, until it has left
  Injected* injected_ = nullptr;                                // where the controller's frames go, while one is treated

  // The loop's own.
  std::vector<Received> arrived_;
  PacketMemory made_;
  std::vector<Segment> run_;
};

}  // namespace switchagg
