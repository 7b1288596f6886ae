#include "switchagg/native/worker/link_port.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "switchagg/native/shared/clock.h"

namespace switchagg {
namespace {

constexpr uint32_t kTake = 256;             // entries in one receive()
constexpr time_t kAnswerSeconds = 5;        // the most that the switch may take to answer

}  // namespace

void fail_refused(const char* what) { throw std::system_error(ECONNREFUSED, std::generic_category(), what); }

Descriptor connect_to_switch(const std::string& name) {
  sockaddr_un address{};
  if (name.empty() || name.size() + 1 > sizeof address.sun_path) {
    errno = EINVAL;
    fail("link");
  }
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made) fail("socket");
  const timeval limit{kAnswerSeconds, 0};
  setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(made.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) fail("connect");
  ucred who{};
  socklen_t who_length = sizeof who;
  if (getsockopt(made.get(), SOL_SOCKET, SO_PEERCRED, &who, &who_length) != 0) fail("SO_PEERCRED");
  if (who.uid != geteuid() && who.uid != 0) fail_refused("the switch is another user's");
  return made;
}

LinkPort::LinkPort(std::unique_ptr<UdpPort>& udp, const std::string& name, Endpoint peer, uint16_t job, uint32_t token,
                   const link::Shape& shape)
    : shape_(shape), peer_(peer), local_(udp->local()), taken_(kTake) {
  if (!shape.valid()) {
    errno = EINVAL;
    fail("link");
  }
  socket_ = connect_to_switch(name);
  memory_ = SharedMemory::make(shape_.bytes(), false);
  wake_up_ = make_wake_up();
  const link::Attach request{link::kMagic, job, token, shape_};
  const int descriptors[] = {memory_.descriptor(), udp->descriptor()};
  if (!send_message(socket_.get(), request, descriptors)) fail_refused("the switch does not listen");
  link::Attached answer;
  std::array<Descriptor, 1> given;
  if (!receive_message(socket_.get(), answer, given, true) || answer.magic != link::kMagic || !answer.accepted || !given[0])
    fail_refused("the switch refused");
  bell_ = std::move(given[0]);
  memory_.close_descriptor();
  uint8_t* const at = memory_.get();
  up_ = link::Writer(at, shape_.up_ring(), shape_.up_entries(), shape_.entries);
  down_ = link::Reader(at, shape_.down_ring(), shape_.down_entries(), shape_.entries);
  udp_ = std::move(udp);
}

uint8_t* LinkPort::packet_memory(size_t bytes) {
  if (bytes > shape_.memory_bytes) throw std::system_error(EINVAL, std::generic_category(), "packet memory");
  return memory_.get() + shape_.packets();
}

// The switch wrote something invalid: ends the link, so that the switch sees the end too.
void LinkPort::end() {
  ended_ = broken_ = true;
  shutdown(socket_.get(), SHUT_RDWR);
}

bool LinkPort::wait(int64_t timeout_ns) {
  down_.release();
  if (!ended_ && timeout_ns != 0 && link::busy_poll(busy_poll_, [this] { return down_.available() > 0; })) return true;
  if (!ended_ && !down_.fall_asleep()) return true;
  const timespec limit = timespec_of(timeout_ns);
  // Only the end of the socket counts here: announcements stay in it until an entry needs them.
  pollfd fds[3] = {
      {wake_up_.get(), POLLIN, 0}, {ended_ ? -1 : bell_.get(), POLLIN, 0}, {ended_ ? -1 : socket_.get(), POLLRDHUP, 0}};
  const int ready = ppoll(fds, 3, timeout_ns >= 0 ? &limit : nullptr, nullptr);
  down_.awake();
  ++waits_;
  if (ready > 0 && (fds[0].revents & POLLIN)) clear_wake_up(wake_up_.get());
  if (ready > 0 && fds[1].revents && !link::hear_bell(bell_.get())) ended_ = true;
  if (ready > 0 && fds[2].revents) ended_ = true;
  return ready != 0;
}

void LinkPort::abandon() {
  socket_.reset();
  wake_up_.reset();
  bell_.reset();
  udp_->abandon();
  regions_.clear();
  memory_ = SharedMemory();
}

// The memory that the switch announced under this id, or null.
const SharedMemory* LinkPort::region(uint32_t id) {
  if (id == 0) return &memory_;
  for (;;) {
    for (const Region& known : regions_)
      if (known.id == id) return &known.memory;
    link::Announce announce;
    std::array<Descriptor, 1> given;
    // The switch announces memory before the first entry that needs it, so a missing announcement never comes.
    if (!receive_message(socket_.get(), announce, given)) return nullptr;
    auto memory = SharedMemory::map(std::move(given[0]), announce.bytes, false);
    if (announce.magic != link::kMagic || announce.region == 0 || !memory) return nullptr;
    regions_.push_back({announce.region, std::move(*memory)});
  }
}

void LinkPort::receive(std::vector<Received>& into) {
  counters_.receive_calls = waits_;
  if (ended_) ++counters_.refused;  // at each call, as for packets to a closed UDP port
  if (broken_) return;
  down_.release();
  uint32_t there = down_.available();
  if (!down_.sane(there)) return end();
  there = std::min(there, kTake);
  for (uint32_t i = 0; i < there; ++i) {
    link::Entry& entry = taken_[i];
    down_.take(entry);
    const SharedMemory* const memory = region(entry.region);
    const uint32_t words = entry.size - wire::kHeaderBytes;
    if (!memory || entry.size < wire::kHeaderBytes || entry.size > shape_.packet_bytes ||
        entry.offset > memory->size() || words > memory->size() - entry.offset)
      return end();
    into.push_back({entry.header, entry.size, peer_, memory->get() + entry.offset});
    ++counters_.packets_in;
    counters_.bytes_in += entry.size;
  }
}

void LinkPort::send(std::span<const Endpoint>, std::span<const Segment> segments) {
  if (segments.empty()) return;
  if (ended_) {
    ++counters_.refused;
    return;
  }
  const uint8_t* const begin = memory_.get();
  for (const Segment& segment : segments) {
    const int64_t index = up_.next_index();
    if (index < 0) {
      ++counters_.send_errors;
      continue;
    }
    link::Entry entry;
    entry.region = 0;
    entry.size = segment.size;
    entry.offset = static_cast<uint64_t>(segment.data + wire::kHeaderBytes - begin);
    std::memcpy(entry.header, segment.data, wire::kHeaderBytes);
    up_.write(index, entry);
    ++counters_.packets_out;
    counters_.bytes_out += segment.size;
  }
  if (up_.publish()) {
    ++counters_.send_calls;
    link::ring_bell(bell_.get());
  }
}

}  // namespace switchagg
