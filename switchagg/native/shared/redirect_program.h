// The XDP program that takes frames of some UDP endpoints from the kernel's stack, and the map of their sockets. It passes
// everything else: other ports, other protocols, fragments, options, tags, and frames larger than the sockets' memory.
#pragma once

#include <string>

#include "switchagg/native/shared/descriptor.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

class RedirectProgram {
 public:
  // Attaches it to an interface, in its driver if that can, until the object or the process ends. `largest`: bytes of a frame.
  // Throws std::system_error that says what the kernel refused.
  RedirectProgram(int interface, uint32_t largest, uint32_t queues);

  bool in_driver() const { return in_driver_; }  // else behind it, in the kernel's generic form
  void set_socket(uint32_t queue, int socket);   // throws std::system_error
  void open(Endpoint local);                     // throws std::system_error
  void close(Endpoint local);
  void abandon();

 private:
  Descriptor endpoints_, sockets_, program_, link_;
  bool in_driver_ = true;
};

}  // namespace switchagg
