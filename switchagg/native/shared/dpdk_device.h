// Ports of DPDK, one queue each way; of a switch with several threads each has a device with another queue of each port. Nothing
// of DPDK is linked or included: switchagg/devices/dpdk.py starts it, checks its layouts, and hands over the functions that move
// packets (rte_eth_fp_ops) and those of the memory pool.
//
//      receive()  rx_burst -> views of mbufs               release()  rte_pktmbuf_free_bulk
//      reserve()  an mbuf of the pool                      flush()    tx_burst
//
// Where the driver has no interrupts, as virtual devices, a wait sleeps for 20 to 1,000 microseconds between two looks.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "switchagg/native/shared/frame_device.h"
#include "switchagg/native/shared/frame_host.h"

namespace switchagg {

struct DpdkPort {
  using Burst = uint16_t (*)(void* queue, void** mbufs, uint16_t count);
  uint16_t number;
  Burst receive, transmit;
  void *receive_queue, *transmit_queue;
  uint64_t mac;
  int interrupt;  // a descriptor, or -1
  uint16_t queue;
};

struct DpdkSettings {
  std::vector<DpdkPort> ports;  // with each of their queues
  uint32_t mtu;
  void* pool;
  int (*dequeue)(void* pool, void** objects, unsigned count);  // of the pool
  void (*free_bulk)(void** mbufs, unsigned count);
  int (*interrupt_on)(uint16_t port, uint16_t queue);
  int (*interrupt_off)(uint16_t port, uint16_t queue);
  uint32_t receive_frames;
  bool poll;  // never sleep
};

class DpdkDevice : public FrameDevice {
 public:
  DpdkDevice(const DpdkSettings& settings, uint32_t queue);
  ~DpdkDevice() override;

  uint16_t interfaces() const override { return static_cast<uint16_t>(settings_.ports.size()); }
  uint64_t mac(uint16_t interface) const override { return settings_.ports[interface].mac; }
  uint32_t largest_frame() const override;
  uint32_t receive_frames() const override { return settings_.receive_frames; }
  void receive(std::vector<DeviceFrame>& into) override;
  void release(std::span<const DeviceFrame> frames) override;
  uint8_t* reserve(uint16_t interface, uint32_t bytes) override;
  void flush() override;
  bool ready() const override;
  bool wait(std::span<const int> more, int64_t timeout_ns) override;
  bool shared_with_kernel() const override { return false; }
  void abandon() override {}  // a child cannot use the parent's DPDK, whose descriptors are DPDK's own
  uint64_t no_room() const override { return no_room_; }

 private:
  struct Came {
    void* mbuf;
    uint16_t interface;
  };
  void look() const;

  const DpdkSettings settings_;              // with ports of the device's queue alone
  std::vector<std::vector<void*>> leaving_;  // by port
  std::vector<void*> spare_;                 // mbufs of the pool
  std::vector<void*> back_;                  // to free
  uint64_t no_room_ = 0;
  size_t turn_ = 0;

  // Any thread that waits looks for frames, since nothing else says that they are there.
  mutable std::mutex lock_;
  mutable std::vector<Came> came_;
  mutable std::atomic<size_t> there_{0};
};

// This process's hosts on its DPDK ports, for so many threads, which have a queue each. Throws std::system_error if they have
// another address already.
FrameHost::Hosts dpdk_hosts(uint32_t ip, const DpdkSettings& settings, uint32_t threads);

// Settings as Python has them. A port is (number, rx_burst, its queue, tx_burst, its queue, MAC, descriptor or -1, queue);
// `functions`: dequeue, free_bulk, interrupt_on, interrupt_off.
DpdkSettings dpdk_settings(const std::vector<std::vector<int64_t>>& ports, uint32_t mtu, uint64_t pool,
                           const std::vector<int64_t>& functions, uint32_t receive_frames, bool poll);

}  // namespace switchagg
