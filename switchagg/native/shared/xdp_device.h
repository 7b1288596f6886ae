// An interface through AF_XDP sockets, one for each of its receive queues. Frames of open endpoints come straight from the
// driver into memory that kernel and process share (UMEM), without a copy where the driver can do that; the rest stays with
// the kernel (redirect_program.h).
//
//      queue 0: [fill] [rx] [tx] [completion] + memory        queue 1: [fill] [rx] + memory        ...
//
// Everything is sent by the first of a device's queues. Of a switch with several threads each has a device, with every so many-th
// queue. The kernel is called only when it asks for it (XDP_USE_NEED_WAKEUP).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchagg/native/shared/frame_device.h"
#include "switchagg/native/shared/frame_host.h"
#include "switchagg/native/shared/redirect_program.h"

namespace switchagg {

class XdpDevice : public FrameDevice {
 public:
  // Throws std::system_error that says what was refused. `program`: of the devices before this one.
  explicit XdpDevice(const std::string& interface, uint32_t thread = 0, uint32_t threads = 1,
                     std::shared_ptr<RedirectProgram> program = {});
  ~XdpDevice() override;

  uint16_t interfaces() const override { return 1; }
  uint64_t mac(uint16_t) const override { return mac_; }
  uint32_t largest_frame() const override { return largest_; }
  uint32_t receive_frames() const override;
  void receive(std::vector<DeviceFrame>& into) override;
  void release(std::span<const DeviceFrame> frames) override;
  uint8_t* reserve(uint16_t interface, uint32_t bytes) override;
  void flush() override;
  bool ready() const override;
  bool wait(std::span<const int> more, int64_t timeout_ns) override;
  void open(Endpoint local) override { program_->open(local); }
  void close(Endpoint local) override { program_->close(local); }
  bool shared_with_kernel() const override { return true; }
  void abandon() override;
  uint64_t no_room() const override { return no_room_; }

  std::string description(size_t queues) const;  // such as "eth0, in the driver, without a copy, 4 queues"
  size_t queues() const { return queues_.size(); }
  const std::shared_ptr<RedirectProgram>& program() const { return program_; }

 private:
  struct Queue;
  void add_queue(int interface, uint32_t number);  // throws std::system_error
  void reap(Queue& queue);

  const std::string name_;
  uint64_t mac_ = 0;
  uint32_t largest_ = 0, chunk_ = 0;
  std::shared_ptr<RedirectProgram> program_;
  std::vector<std::unique_ptr<Queue>> queues_;
  size_t turn_ = 0;  // the queue that is read first
  uint64_t no_room_ = 0;
};

// This process's hosts of an address, on the interface that has it, for so many threads. Throws std::system_error that names the
// interface.
FrameHost::Hosts xdp_hosts(uint32_t ip, uint32_t threads, std::string& description);

}  // namespace switchagg
