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
  packets_ = SharedMemory::make(shape_.memory_bytes, false);
  wake_up_ = make_wake_up();
  waited_for_.push_back({wake_up_.get(), POLLIN, 0});
  const uint32_t threads = attach(name, udp->descriptor(), job, token);
  for (uint32_t thread = 1; thread < threads; ++thread) attach(link::name_of(name, thread), udp->descriptor(), job, token);
  packets_.close_descriptor();
  udp_ = std::move(udp);
}

// Makes a link to the thread of the switch that has this UNIX socket. Returns how many threads there are.
uint32_t LinkPort::attach(const std::string& name, int udp, uint16_t job, uint32_t token) {
  Link& made = links_.emplace_back();
  made.socket = connect_to_switch(name);
  made.memory = SharedMemory::make(shape_.bytes(), false);
  const link::Attach request{link::kMagic, job, token, shape_};
  const int descriptors[] = {made.memory.descriptor(), packets_.descriptor(), udp};
  if (!send_message(made.socket.get(), request, descriptors)) fail_refused("the switch does not listen");
  link::Attached answer;
  std::array<Descriptor, 1> given;
  if (!receive_message(made.socket.get(), answer, given, true) || answer.magic != link::kMagic || !answer.threads || !given[0])
    fail_refused("the switch refused");
  made.bell = std::move(given[0]);
  made.memory.close_descriptor();
  uint8_t* const at = made.memory.get();
  made.up = link::Writer(at, shape_.up_ring(), shape_.up_entries(), shape_.entries);
  made.down = link::Reader(at, shape_.down_ring(), shape_.down_entries(), shape_.entries);
  // Only the end of the socket counts: announcements stay in it until an entry needs them.
  waited_for_.push_back({made.bell.get(), POLLIN, 0});
  waited_for_.push_back({made.socket.get(), POLLRDHUP, 0});
  return answer.threads;
}

uint8_t* LinkPort::packet_memory(size_t bytes) {
  if (bytes > packets_.size()) throw std::system_error(EINVAL, std::generic_category(), "packet memory");
  return packets_.get();
}

// The switch wrote something invalid: ends the links, so that the switch sees the end too.
void LinkPort::end() {
  ended_ = broken_ = true;
  for (const Link& link : links_) shutdown(link.socket.get(), SHUT_RDWR);
}

bool LinkPort::wait(int64_t timeout_ns) {
  for (Link& link : links_) link.down.release();
  const auto there = [this] {
    return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.down.available() > 0; });
  };
  if (!ended_ && timeout_ns != 0 && link::busy_poll(busy_poll_, there)) return true;
  bool found = false;
  for (Link& link : links_) found |= !ended_ && !link.down.fall_asleep();
  const timespec limit = timespec_of(timeout_ns);
  const size_t count = ended_ ? 1 : waited_for_.size();
  const int ready = found ? 0 : ppoll(waited_for_.data(), count, timeout_ns >= 0 ? &limit : nullptr, nullptr);
  for (Link& link : links_) link.down.awake();
  if (found) return true;
  ++waits_;
  if (ready > 0) {
    if (waited_for_[0].revents & POLLIN) clear_wake_up(wake_up_.get());
    for (size_t i = 1; i < count; i += 2)
      if ((waited_for_[i].revents && !link::hear_bell(waited_for_[i].fd)) || waited_for_[i + 1].revents) ended_ = true;
  }
  return ready != 0;
}

void LinkPort::abandon() {
  wake_up_.reset();
  udp_->abandon();
  links_.clear();
  packets_ = SharedMemory();
}

// The memory that the switch announced under this id, or null.
const SharedMemory* LinkPort::region(Link& link, uint32_t id) {
  if (id == 0) return &link.memory;
  for (;;) {
    for (const Region& known : link.regions)
      if (known.id == id) return &known.memory;
    link::Announce announce;
    std::array<Descriptor, 1> given;
    // The switch announces memory before the first entry that needs it, so a missing announcement never comes.
    if (!receive_message(link.socket.get(), announce, given)) return nullptr;
    auto memory = SharedMemory::map(std::move(given[0]), announce.bytes, false);
    if (announce.magic != link::kMagic || announce.region == 0 || !memory) return nullptr;
    link.regions.push_back({announce.region, std::move(*memory)});
  }
}

void LinkPort::receive(std::vector<Received>& into) {
  counters_.receive_calls = waits_;
  if (ended_) ++counters_.refused;  // at each call, as for packets to a closed UDP port
  if (broken_) return;
  uint32_t used = 0;
  turn_ = (turn_ + 1) % links_.size();
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[(turn_ + i) % links_.size()];
    link.down.release();
    uint32_t there = link.down.available();
    if (!link.down.sane(there)) return end();
    for (there = std::min(there, kTake - used); there > 0; --there) {
      link::Entry& entry = taken_[used++];
      link.down.take(entry);
      const SharedMemory* const memory = region(link, entry.region);
      const uint32_t words = entry.size - wire::kHeaderBytes;
      if (!memory || entry.size < wire::kHeaderBytes || entry.size > shape_.packet_bytes ||
          entry.offset > memory->size() || words > memory->size() - entry.offset)
        return end();
      into.push_back({entry.header, entry.size, peer_, memory->get() + entry.offset});
      ++counters_.packets_in;
      counters_.bytes_in += entry.size;
    }
  }
}

void LinkPort::send(std::span<const Endpoint>, std::span<const Segment> segments) {
  if (segments.empty()) return;
  if (ended_) {
    ++counters_.refused;
    return;
  }
  const uint8_t* const begin = packets_.get();
  Link* last = nullptr;
  for (const Segment& segment : segments) {
    Link& link = links_[wire::load16(segment.data + wire::kSlotOffset) / wire::kBlockSlots % links_.size()];
    if (last && last != &link) publish(*last);
    last = &link;
    const int64_t index = link.up.next_index();
    if (index < 0) {
      ++counters_.send_errors;
      continue;
    }
    link::Entry entry;
    entry.region = 0;
    entry.size = segment.size;
    entry.offset = static_cast<uint64_t>(segment.data + wire::kHeaderBytes - begin);
    std::memcpy(entry.header, segment.data, wire::kHeaderBytes);
    link.up.write(index, entry);
    ++counters_.packets_out;
    counters_.bytes_out += segment.size;
  }
  publish(*last);
}

void LinkPort::publish(Link& link) {
  if (!link.up.publish()) return;
  ++counters_.send_calls;
  link::ring_bell(link.bell.get());
}

}  // namespace switchagg
