#include "switchagg/native/switch/hub_port.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "switchagg/native/shared/clock.h"

namespace switchagg {
namespace {

constexpr size_t kMaxLinks = 1024;
constexpr uint32_t kTakeEach = 64;    // entries of one link in one receive()
constexpr uint32_t kTakeAll = 256;    // of all of them
constexpr uint32_t kPollEvery = 16;   // a busy hub polls its sockets in one wait() of so many
constexpr int kAcceptEach = 2;        // connections in one wait(), so that many of them do not delay packets
constexpr int64_t kAcceptPauseNs = 500'000'000;  // until the next try, when no descriptor was free
constexpr int64_t kSilentNs = 5'000'000'000;  // a connection may be dropped for another if it has not attached by then

// An event's tag is the link for its socket, and one more for its bell.
void* bell_tag(void* link) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(link) | 1); }
bool is_bell(void* tag) { return (reinterpret_cast<uintptr_t>(tag) & 1) != 0; }

constexpr uint32_t kWatched = EPOLLIN | EPOLLRDHUP;

uint64_t key(uint16_t job, Endpoint e) { return uint64_t{e.ip} << 32 | uint32_t{e.port} << 16 | job; }

uint16_t job_of(const Segment& segment) {
  return segment.size < wire::kHeaderBytes ? uint16_t{0} : wire::load16(segment.data + wire::kJobOffset);
}

}  // namespace

struct HubPort::Link {
  Descriptor socket;
  bool attached = false, broken = false;
  bool has_slots = false;  // the worker has the memory of its job's shared slots, and the switch no rings to read
  int64_t since = 0;
  uint16_t job = 0;
  Endpoint endpoint;
  Descriptor bell;  // the switch's end
  link::Shape shape;
  SharedMemory memory, packets;
  link::Reader up;
  link::Writer down;
  std::vector<uint32_t> announced;
  FindableMemory::Found found;  // that the last RESULT was in
  uint64_t generation = 0;
};

std::string HubPort::random_name() {
  std::array<uint8_t, 16> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) fail("getrandom");
  std::string name = "switchagg-";
  for (const uint8_t b : bytes) {
    name += "0123456789abcdef"[b >> 4];
    name += "0123456789abcdef"[b & 15];
  }
  return name;
}

HubPort::HubPort(std::unique_ptr<UdpPort> udp, Admits admits, Offers offers, std::string name, uint32_t threads)
    : udp_(std::move(udp)), admits_(std::move(admits)), offers_(std::move(offers)), name_(std::move(name)), threads_(threads) {
  taken_.resize(kTakeAll);
  listener_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener_) fail("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name_.data(), name_.size());  // a leading 0: the abstract namespace
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
  if (listen(listener_.get(), 64) != 0) fail("listen");
  wake_up_ = make_wake_up();
  epoll_.watch(udp_->descriptor(), udp_.get(), kWatched);
  epoll_.watch(wake_up_.get(), &wake_up_, kWatched);
  epoll_.watch(listener_.get(), &listener_, kWatched);
}

HubPort::~HubPort() = default;

// Off while no descriptor is free for a connection: the listener would be ready all the time.
void HubPort::set_accepting(bool on) {
  epoll_.change(listener_.get(), &listener_, on ? uint32_t{EPOLLIN} : 0u);
  accept_paused_until_ = on ? 0 : now_ns() + kAcceptPauseNs;
}

void HubPort::abandon() {
  listener_.reset();
  wake_up_.reset();
  epoll_.close();
  links_.clear();
  by_worker_.clear();
  udp_->abandon();
}

void HubPort::end_links() {
  for (const auto& l : links_) shutdown(l->socket.get(), SHUT_RDWR);
}

const PortCounters& HubPort::counters() const {
  total_ = udp_->counters();
  return total_ += shared_;
}

bool HubPort::any_available() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& l) { return l->attached && l->up.available() > 0; });
}

bool HubPort::wait(int64_t timeout_ns) {
  drop_marked();
  for (const auto& l : links_)
    if (l->attached) l->up.release();
  std::array<epoll_event, 32> events;
  std::span<epoll_event> ready;
  const auto there = [&] {
    if (by_worker_.empty()) ready = epoll_.wait(events, 0);
    return !ready.empty() || any_available();
  };
  bool busy = any_available();
  if (!busy && timeout_ns != 0) busy = link::busy_poll(false, there);
  if (busy && ready.empty() && ++waits_ < kPollEvery) return true;
  waits_ = 0;
  if (!busy) {
    for (const auto& l : links_)
      if (l->attached && !l->up.fall_asleep()) busy = true;
  }
  ++shared_.receive_calls;
  if (busy) timeout_ns = 0;
  if (accept_paused_until_ != 0) {
    const int64_t left = accept_paused_until_ - now_ns();
    if (left <= 0) set_accepting(true);
    else if (timeout_ns < 0 || timeout_ns > left) timeout_ns = left;
  }
  if (ready.empty()) ready = epoll_.wait(events, timeout_ns);
  for (const auto& l : links_)
    if (l->attached) l->up.awake();
  for (const epoll_event& event : ready) {
    void* const tag = event.data.ptr;
    if (tag == udp_.get()) {
      udp_ready_ = true;
    } else if (tag == &wake_up_) {
      clear_wake_up(wake_up_.get());
    } else if (tag == &listener_) {
      accept_links();
    } else if (is_bell(tag)) {
      Link& link = *reinterpret_cast<Link*>(reinterpret_cast<uintptr_t>(tag) & ~uintptr_t{1});
      if (!link::hear_bell(link.bell.get())) link.broken = true;
    } else {
      Link& link = *static_cast<Link*>(tag);  // a request to attach, or the end of a link
      if (!link.broken && (link.attached || link.has_slots || !attach(link))) link.broken = true;
    }
  }
  drop_marked();
  return busy || !ready.empty();
}

void HubPort::accept_links() {
  for (int i = 0; i < kAcceptEach; ++i) {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) set_accepting(false);
      return;
    }
    ucred who{};
    socklen_t length = sizeof who;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) continue;
    if (who.uid != geteuid() && who.uid != 0) continue;
    const int64_t now = now_ns();
    if (links_.size() >= kMaxLinks) {
      for (const auto& l : links_)
        if (!l->attached && !l->has_slots && now - l->since > kSilentNs) l->broken = true;
      continue;
    }
    auto link = std::make_unique<Link>();
    link->socket = std::move(socket);
    link->since = now;
    if (epoll_.try_watch(link->socket.get(), link.get(), kWatched)) links_.push_back(std::move(link));
  }
}

bool HubPort::attach(Link& link) {
  link::Attach request;
  std::array<Descriptor, 3> given;  // the link's memory, packet memory, UDP socket; for shared slots the last alone
  if (!receive_message(link.socket.get(), request, given) || !given[0]) return false;
  const bool slots = !given[1];
  const int udp = given[slots ? 0 : 2].get();
  if (request.magic != link::kMagic || request.job > 0xFFFF || slots != (request.shape.entries == 0)) return false;
  if (!slots && !request.shape.valid()) return false;

  SocketAddress address;
  socklen_t length = SocketAddress::kLargest;
  int protocol = 0;
  socklen_t protocol_length = sizeof protocol;
  if (getsockname(udp, address.get(), &length) != 0 ||
      (address.family() != AF_INET && address.family() != AF_INET6) || length != address.size() ||
      getsockopt(udp, SOL_SOCKET, SO_PROTOCOL, &protocol, &protocol_length) != 0 || protocol != IPPROTO_UDP)
    return false;
  const Endpoint endpoint = address.endpoint();
  const uint16_t job = static_cast<uint16_t>(request.job);
  if (slots) return offer_slots(link, job, endpoint, request.token);
  if (find(job, endpoint) || !admits_(job, endpoint, request.token)) return false;

  auto memory = SharedMemory::map(std::move(given[0]), request.shape.bytes(), true);
  auto packets = SharedMemory::map(std::move(given[1]), request.shape.memory_bytes, false);
  if (!memory || !packets) return false;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  Descriptor bell(ends[0]);
  const Descriptor theirs(ends[1]);
  const link::Attached answer{link::kMagic, threads_};
  if (!epoll_.try_watch(bell.get(), bell_tag(&link)) || !send_message(link.socket.get(), answer, {&ends[1], 1}))
    return false;
  link.job = job;
  link.endpoint = endpoint;
  link.bell = std::move(bell);
  link.shape = request.shape;
  link.memory = std::move(*memory);
  link.packets = std::move(*packets);
  uint8_t* const at = link.memory.get();
  link.up = link::Reader(at, request.shape.up_ring(), request.shape.up_entries(), request.shape.entries);
  link.down = link::Writer(at, request.shape.down_ring(), request.shape.down_entries(), request.shape.entries);
  link.attached = true;
  by_worker_[key(job, endpoint)] = &link;
  return true;
}

bool HubPort::offer_slots(Link& link, uint16_t job, Endpoint endpoint, uint32_t token) {
  const auto offer = offers_ ? offers_(job, endpoint, token) : std::nullopt;
  if (!offer) return false;
  const int memory = offer->memory.get();
  const link::AttachedSlots answer{link::kMagic, offer->worker, offer->shape.workers, offer->shape.slots, offer->shape.words};
  link.has_slots = send_message(link.socket.get(), answer, {&memory, 1});
  return link.has_slots;
}

void HubPort::drop_marked() {
  std::erase_if(links_, [this](const std::unique_ptr<Link>& l) {
    if (!l->broken) return false;
    if (l->attached) by_worker_.erase(key(l->job, l->endpoint));
    // A forked child may hold the socket too; closing would then not end the connection.
    epoll_.drop(l->socket.get());
    epoll_.drop(l->bell.get());
    shutdown(l->socket.get(), SHUT_RDWR);
    if (accept_paused_until_ != 0) set_accepting(true);
    return true;
  });
}

HubPort::Link* HubPort::find(uint16_t job, Endpoint worker) const {
  const auto found = by_worker_.find(key(job, worker));
  return found == by_worker_.end() ? nullptr : found->second;
}

void HubPort::receive(std::vector<Received>& into) {
  size_t used = 0;
  const size_t count = links_.size();
  if (count > 0) turn_ = (turn_ + 1) % count;
  for (size_t i = 0; i < count; ++i) {
    Link& link = *links_[(turn_ + i) % count];
    if (!link.attached || link.broken) continue;
    link.up.release();
    uint32_t there = link.up.available();
    if (!link.up.sane(there)) {
      link.broken = true;
      continue;
    }
    there = std::min<uint32_t>({there, kTakeEach, kTakeAll - static_cast<uint32_t>(used)});
    for (; there > 0; --there) {
      link::Entry& entry = taken_[used];
      link.up.take(entry);
      const uint32_t words = entry.size - wire::kHeaderBytes;
      if (entry.region != 0 || entry.size < wire::kHeaderBytes || entry.size > link.shape.packet_bytes ||
          entry.offset > link.packets.size() || words > link.packets.size() - entry.offset) {
        link.broken = true;
        break;
      }
      into.push_back({entry.header, entry.size, link.endpoint, link.packets.get() + entry.offset});
      ++shared_.packets_in;
      shared_.bytes_in += entry.size;
      ++used;
    }
  }
  if (udp_ready_) {
    const size_t before = into.size();
    udp_->receive(into);
    udp_ready_ = into.size() > before;
  }
}

// Writes one packet into a link's ring.
bool HubPort::write(Link& link, const Segment& segment) {
  const int64_t at = link.down.next_index();
  if (at < 0 || segment.size < wire::kHeaderBytes || segment.size > link.shape.packet_bytes) return false;
  link::Entry entry;
  entry.size = segment.size;
  std::memcpy(entry.header, segment.data, wire::kHeaderBytes);
  const uint8_t* const words = segment.data + wire::kHeaderBytes;
  const size_t bytes = segment.size - wire::kHeaderBytes;
  entry.region = 0;
  entry.offset = link.shape.spare() + static_cast<size_t>(at) * link.shape.packet_bytes;
  if (bytes > 0) {
    const uint64_t generation = FindableMemory::generation();
    FindableMemory::Found& found = link.found;
    if (generation != link.generation || !found.holds(segment.data, segment.size)) {
      found = FindableMemory::find(segment.data, segment.size).value_or(FindableMemory::Found{});
      link.generation = generation;
    }
    if (found.holds(segment.data, segment.size)) {
      if (std::find(link.announced.begin(), link.announced.end(), found.id) == link.announced.end()) {
        const link::Announce announce{link::kMagic, found.id, found.size};
        if (!send_message(link.socket.get(), announce, {&found.descriptor, 1})) return false;
        link.announced.push_back(found.id);
      }
      entry.region = found.id;
      entry.offset = static_cast<uint64_t>(words - found.begin);
    } else {
      std::memcpy(link.memory.get() + entry.offset, words, bytes);
    }
  }
  link.down.write(at, entry);
  return true;
}

void HubPort::send(std::span<const Endpoint> to, std::span<const Segment> segments) {
  if (by_worker_.empty()) return udp_->send(to, segments);
  while (!segments.empty()) {
    size_t count = 1;
    while (count < segments.size() && job_of(segments[count]) == job_of(segments[0])) ++count;
    send_of(job_of(segments[0]), to, segments.first(count));
    segments = segments.subspan(count);
  }
}

void HubPort::send_of(uint16_t job, std::span<const Endpoint> to, std::span<const Segment> segments) {
  remote_.clear();
  for (const Endpoint& endpoint : to) {
    Link* const link = find(job, endpoint);
    if (!link || link->broken) {
      remote_.push_back(endpoint);
      continue;
    }
    for (const Segment& segment : segments) {
      if (write(*link, segment)) {
        ++shared_.packets_out;
        shared_.bytes_out += segment.size;
      } else {
        ++shared_.send_errors;  // as a full socket buffer would lose it
      }
    }
    if (link->down.publish()) {
      ++shared_.send_calls;
      link::ring_bell(link->bell.get());
    }
  }
  if (!remote_.empty()) udp_->send(remote_, segments);
}

}  // namespace switchagg
