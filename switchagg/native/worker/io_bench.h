// Loops that send and receive as fast as a port takes them, for `switchagg bench io`; and the same without our code, as a floor:
// calls of the kernel or of the device on frames that were made before.
#pragma once

#include <memory>

#include "switchagg/native/shared/frame_host.h"
#include "switchagg/native/shared/udp_port.h"

namespace switchagg {

struct IoFigures {
  uint64_t packets = 0, bytes = 0;
  int64_t wall_ns = 0, processor_ns = 0;  // of the loop's thread, what the kernel does for it included
};

// Of an endpoint: `udp` is nullptr without a socket of the kernel, `host` without a frame device. `bare`: the floor. A receiver
// answers now and then, so that a sender learns where it is.
IoFigures send_for(std::unique_ptr<UdpPort> udp, std::shared_ptr<FrameHost> host, Endpoint local, Endpoint to, uint32_t bytes,
                   uint32_t batch, int64_t ns, bool bare);
// Begins with the first packet, and ends after `ns` from then on, or 10 seconds without one.
IoFigures receive_for(std::unique_ptr<UdpPort> udp, std::shared_ptr<FrameHost> host, Endpoint local, int64_t ns, bool bare);

}  // namespace switchagg
