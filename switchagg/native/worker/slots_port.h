// A worker's port to slots that the workers of its job share (switchagg/native/shared/shared_slots.h). Sending runs the slot
// machine; receiving adds rounds up that are complete, unless another worker does, and hands out their words where they are.
// Keeps the UDP socket of the admitted address bound, but does not use it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/shared_memory.h"
#include "switchagg/native/shared/shared_slots.h"
#include "switchagg/native/shared/udp_port.h"

namespace switchagg {

class SlotsPort : public Port {
 public:
  // Asks the switch whose UNIX socket has this name for the memory. Throws std::system_error if there is none, or if it refuses,
  // as it does unless it has admitted the address of `udp` to this job, with shared slots, with this token; the caller then
  // keeps `udp`.
  SlotsPort(std::unique_ptr<UdpPort>& udp, const std::string& name, Endpoint peer, uint16_t job, uint32_t token, uint32_t slots,
            uint32_t words);

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;  // from packet_memory() only
  void set_busy_poll(bool yes) override { busy_poll_ = yes; }
  bool reliable() const override { return true; }
  bool is_last(uint32_t seq) const override { return !fenced() && slots_.is_last(worker_, seq); }
  void complete(uint32_t seq, const uint8_t* words, uint32_t used) override {
    completed_.emplace_back(seq, slots_.complete(worker_, seq, words, used));
  }
  void restore(uint32_t seq) override { slots_.restore(worker_, seq); }
  std::shared_ptr<SharedSums> sums() override { return sums_; }
  bool fenced() const override { return slots_.fenced(worker_); }
  void wake_others() override { counters_.send_calls += slots_.wake_all(); }
  void wake() override;
  void abandon() override;
  Endpoint local() const override { return local_; }
  const PortCounters& counters() const override { return counters_; }
  uint8_t* packet_memory(size_t bytes) override;

 private:
  struct Pending {  // sent, and its RESULT not received
    uint32_t seq, used;
    bool received;
  };
  bool there() const;
  void spread();
  bool poll();
  bool woken();
  bool ended();

  Endpoint peer_, local_;
  std::unique_ptr<UdpPort> udp_;
  Descriptor socket_;
  SharedSlots slots_;
  std::shared_ptr<SharedSums> sums_;  // holds the memory of both, which an engine needs for longer than this port
  uint32_t worker_ = 0;
  uint32_t heard_ = 0;  // wake-ups so far
  std::vector<Pending> pending_;  // in the order of sending, from first_ on
  size_t first_ = 0;
  std::vector<std::pair<uint32_t, Effect>> completed_;  // of rounds whose packets are sent next
  std::vector<int> cores_;  // that the thread which looked last may use, in order
  int64_t may_look_ = 0;    // the next look at them
  int64_t may_move_ = 0;    // the next move to another core
  bool busy_poll_ = false;
  bool ended_ = false;  // the switch is gone; what the workers do among themselves is still valid
  uint64_t waits_ = 0, moves_ = 0;  // only the driver's; other threads read counters_ between its waits
  PortCounters counters_;
};

}  // namespace switchagg
