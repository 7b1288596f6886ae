// Interfaces whose frames a process moves itself, past the kernel's stack. It knows nothing of what is in a frame.
//
//      frames that came   receive() -> views of the device's own memory, valid until release()
//      frames to send     reserve() -> memory of the device to build a frame in; flush() sends what was reserved, in order
//
// One thread at a time calls these, except wait() and ready(), which any thread may call meanwhile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchagg/native/shared/port.h"

namespace switchagg {

struct DeviceFrame {
  const uint8_t* data;
  uint32_t size;
  uint16_t interface;  // that it came from
  uint64_t handle;     // the device's name for its memory
};

class FrameDevice {
 public:
  virtual ~FrameDevice() = default;

  virtual uint16_t interfaces() const = 0;
  virtual uint64_t mac(uint16_t interface) const = 0;
  virtual uint32_t largest_frame() const = 0;    // bytes that reserve() gives, without the check sequence
  virtual uint32_t receive_frames() const = 0;   // frames that can wait for receive()

  virtual void receive(std::vector<DeviceFrame>& into) = 0;  // appends a batch at most
  virtual void release(std::span<const DeviceFrame> frames) = 0;
  virtual uint8_t* reserve(uint16_t interface, uint32_t bytes) = 0;  // nullptr: no room, which is counted
  virtual void flush() = 0;

  virtual bool ready() const = 0;  // frames are there
  // Blocks until frames are there, one of `more` is readable, or the time has passed (negative: no limit); false after that.
  virtual bool wait(std::span<const int> more, int64_t timeout_ns) = 0;

  // The kernel keeps all traffic but that of the endpoints that are open here. Nothing to do where it has none of it.
  virtual void open(Endpoint) {}
  virtual void close(Endpoint) {}
  virtual bool shared_with_kernel() const = 0;

  virtual void abandon() = 0;  // in a forked child: closes the descriptors that it inherited
  virtual uint64_t no_room() const = 0;  // frames that were not sent, because earlier ones had not left
};

}  // namespace switchagg
