// Capture as a device: a Port around a Port that writes what passes, in both directions, to a pcap file.
//
// The file has timestamps in nanoseconds. Around a port of frames, its records are frames (link type ETHERNET). Around a
// port of datagrams they are IP packets (RAW) with headers made here, because a UDP socket does not show them: right
// addresses, ports, lengths and IPv4 checksum, and of IPv6 also UDP's. A switch bound to 0.0.0.0 or :: has that in them.
//
// Records are buffered, and written when the buffer is full, after a second without traffic, and at the end. A write error
// ends the capture, not the switch: the file is cut to its last whole record, and the missing records are counted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchagg/native/switch/concurrency.h"
#include "switchagg/native/shared/descriptor.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

class PcapPort : public Port {
 public:
  // `file`: an empty file, or a pipe.
  PcapPort(std::unique_ptr<Port> inner, Descriptor file, bool frames);
  ~PcapPort() override { finish(); }

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override { inner_->wake(); }
  void abandon() override;  // discards buffered records
  void finish();            // writes them and closes the file
  Endpoint local() const override { return inner_->local(); }
  const PortCounters& counters() const override { return inner_->counters(); }

  uint64_t captured() const { return captured_; }  // records in the file; what is in memory counts later
  uint64_t missing() const { return missing_; }    // datagrams that passed but are not in the file
  int error() const { return static_cast<int>(uint64_t{error_}); }  // errno of the write that ended the capture; 0: none

 private:
  void record(Endpoint from, Endpoint to, bool received, const Received& datagram);
  void stamp();
  void write_out();

  std::unique_ptr<Port> inner_;
  Descriptor file_;
  const bool frames_;
  std::vector<uint8_t> buffer_;
  uint32_t seconds_ = 0, nanoseconds_ = 0;  // of the records of this batch
  uint64_t buffered_ = 0;                   // records in the buffer
  size_t first_record_;                     // where they start: behind the file's header at first, then at 0
  RelaxedCounter captured_, missing_, error_;
};

}  // namespace switchagg
