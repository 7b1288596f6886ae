// Capture as a device: a Port round a Port that writes what passes, in both directions, to a pcap file.
//
// The file has nanosecond timestamps. Of a port of frames, its link type is ETHERNET and its records are the frames. Of one
// of datagrams, it is RAW: each record is an IPv4 packet. The IPv4 and UDP headers are made
// here, because a UDP socket never shows them: right addresses, ports, lengths and IPv4 checksum, UDP checksum 0 ("none").
// A switch bound to 0.0.0.0 appears under that address.
//
// Records are collected in memory and written when the buffer is full, after a second without traffic, and at the end. A
// file system that takes no more ends the capture, not the switch: the file is cut back to its last whole record, and what
// is missing is counted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchagg/native/switch/relaxed_counter.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

class PcapPort : public Port {
 public:
  // Takes over the descriptor of an empty file, or of a pipe.
  PcapPort(std::unique_ptr<Port> inner, int file, bool frames = false);
  ~PcapPort() override { finish(); }
  PcapPort(const PcapPort&) = delete;
  PcapPort& operator=(const PcapPort&) = delete;

  bool wait(int64_t timeout_ns) override;
  void receive(std::vector<Received>& into) override;
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override;
  void wake() override { inner_->wake(); }
  void abandon() override;  // drops what is not written yet
  void finish();            // writes it and closes the file
  Endpoint local() const override { return inner_->local(); }
  const PortCounters& counters() const override { return inner_->counters(); }

  uint64_t captured() const { return captured_; }  // records in the file; what is in memory counts later
  uint64_t missing() const { return missing_; }    // datagrams that passed but are not in the file
  int error() const { return static_cast<int>(uint64_t{error_}); }  // errno of the write that ended the capture; 0: none

 private:
  void record(Endpoint from, Endpoint to, const Received& datagram);
  void stamp();
  void write_out();

  std::unique_ptr<Port> inner_;
  int file_;
  const bool frames_;
  std::vector<uint8_t> buffer_;
  uint32_t seconds_ = 0, nanoseconds_ = 0;  // of the records of this batch
  uint64_t buffered_ = 0;                   // records in the buffer
  size_t first_record_;                     // where they start: behind the file's header at first, then at 0
  RelaxedCounter captured_, missing_, error_;
};

}  // namespace switchagg
