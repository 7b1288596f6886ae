#include "switchagg/native/switch/pcap_port.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "switchagg/native/shared/frame.h"
#include "switchagg/native/shared/ip_address.h"

namespace switchagg {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr int64_t kIdleNs = 1'000'000'000;
constexpr uint32_t kMagic = 0xA1B23C4D;  // nanoseconds, in the host's byte order
constexpr uint32_t kLinkEthernet = 1, kLinkRaw = 101;
constexpr uint32_t kSnapLength = 65535;

struct FileHeader {
  uint32_t magic = kMagic;
  uint16_t major = 2, minor = 4;
  uint32_t zone = 0, accuracy = 0, snap_length = kSnapLength, link = kLinkRaw;
};
struct RecordHeader {
  uint32_t seconds, nanoseconds, captured, length;
};
static_assert(sizeof(FileHeader) == 24 && sizeof(RecordHeader) == 16);

}  // namespace

PcapPort::PcapPort(std::unique_ptr<Port> inner, Descriptor file, bool frames)
    : inner_(std::move(inner)), file_(std::move(file)), frames_(frames) {
  buffer_.reserve(kBufferBytes + 65536);
  FileHeader header;
  if (frames_) header.link = kLinkEthernet;
  buffer_.resize(sizeof header);
  std::memcpy(buffer_.data(), &header, sizeof header);
  first_record_ = sizeof header;
}

void PcapPort::finish() {
  if (!file_) return;
  write_out();
  file_.reset();
}

void PcapPort::abandon() {  // in a child: the parent writes the file
  inner_->abandon();
  file_.reset();
}

bool PcapPort::wait(int64_t timeout_ns) {
  if (buffer_.empty()) return inner_->wait(timeout_ns);
  const int64_t first = timeout_ns < 0 ? kIdleNs : std::min(timeout_ns, kIdleNs);
  if (inner_->wait(first)) return true;
  if (first == timeout_ns) return false;
  write_out();
  return inner_->wait(timeout_ns < 0 ? -1 : timeout_ns - first);
}

void PcapPort::receive(std::vector<Received>& into) {
  const size_t before = into.size();
  inner_->receive(into);
  if (into.size() == before) return;
  stamp();
  const Endpoint here = local();
  for (size_t i = before; i < into.size(); ++i) record(into[i].peer, here, true, into[i]);
}

void PcapPort::send(std::span<const Endpoint> to, std::span<const Segment> segments) {
  stamp();
  const Endpoint here = local();
  for (const Endpoint& peer : to)
    for (const Segment& segment : segments) record(here, peer, false, Received::whole(segment.data, segment.size, peer));
  inner_->send(to, segments);
}

void PcapPort::stamp() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  seconds_ = static_cast<uint32_t>(now.tv_sec);
  nanoseconds_ = static_cast<uint32_t>(now.tv_nsec);
}

void PcapPort::record(Endpoint from, Endpoint to, bool received, const Received& datagram) {
  const uint32_t size = datagram.size;
  // Of IPv6 if the worker is; of one without a known address, if the switch is.
  Endpoint& here = received ? to : from;
  const Endpoint& peer = received ? from : to;
  const bool ipv6 = is_ipv6(peer.ip ? peer.ip : here.ip);
  if (!ipv6 && is_ipv6(here.ip)) here.ip = 0;
  const uint32_t made = frames_ ? 0 : (ipv6 ? kIpv6Bytes : kIpv4Bytes) + kUdpBytes;  // bytes of headers to add
  if (error_ || size > kSnapLength - made) {
    ++missing_;
    return;
  }
  const uint32_t length = made + size;
  const RecordHeader header{seconds_, nanoseconds_, length, length};
  const size_t at = buffer_.size();
  buffer_.resize(at + sizeof header + length);
  std::memcpy(buffer_.data() + at, &header, sizeof header);
  uint8_t* const packet = buffer_.data() + at + sizeof header;
  datagram.copy_to(packet + made);
  if (!frames_) (ipv6 ? write_ipv6_headers : write_ip_headers)(packet, from, to, size, ecn_of({datagram.header, size}));
  ++buffered_;
  if (buffer_.size() >= kBufferBytes) write_out();
}

void PcapPort::write_out() {
  if (buffer_.empty()) return;
  size_t done = 0;
  while (done < buffer_.size() && !error_) {
    const ssize_t n = write(file_.get(), buffer_.data() + done, buffer_.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error_.add(static_cast<uint64_t>(errno));
    }
  }
  if (error_) {
    // Keep the whole records that were written. Only a regular file can be cut.
    size_t whole = done < first_record_ ? 0 : first_record_;
    uint64_t records = 0;
    while (whole >= first_record_ && whole + sizeof(RecordHeader) <= done) {
      RecordHeader header;
      std::memcpy(&header, buffer_.data() + whole, sizeof header);
      if (whole + sizeof header + header.captured > done) break;
      whole += sizeof header + header.captured;
      ++records;
    }
    const off_t end = lseek(file_.get(), 0, SEEK_CUR);
    if (end >= 0) [[maybe_unused]] const int cut = ftruncate(file_.get(), end - static_cast<off_t>(done - whole));
    captured_.add(records);
    missing_.add(buffered_ - records);
  } else {
    captured_.add(buffered_);
  }
  first_record_ = 0;
  buffered_ = 0;
  buffer_.clear();
}

}  // namespace switchagg
