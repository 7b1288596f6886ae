#include "tests/native/simulation/network.h"

#include <algorithm>
#include <cstring>

namespace simulation {
namespace {

constexpr uint64_t kTimed = uint64_t{1} << 63;
enum class List : uint64_t { outage, stop, foreign };
uint64_t timed_id(List list, size_t index) { return kTimed | static_cast<uint64_t>(list) << 32 | index; }

}  // namespace

Endpoint endpoint_of(uint32_t host, uint16_t port) { return {0x0A000001 + host, port, 0}; }

State state_of(std::span<const uint8_t> packet) {
  const wire::Header h = wire::Header::parse(packet.data());
  const bool words = h.flags & wire::kFlagPayload;
  if (h.op == static_cast<uint8_t>(wire::Op::RESULT))
    return h.reply ? State::answer : words ? State::result_words : State::result_empty;
  if (h.flags & wire::kFlagRetransmission) return words ? State::again_words : State::again_skip;
  if (!words) return State::first_skip;
  return h.op == static_cast<uint8_t>(wire::Op::OR) ? State::first_or : State::first_sum;
}

std::string describe(std::span<const uint8_t> packet) {
  if (packet.size() < wire::kHeaderBytes) return std::to_string(packet.size()) + " bytes";
  const wire::Header h = wire::Header::parse(packet.data());
  constexpr const char* kOps[] = {"SUM", "OR", "RESULT", "INIT"};
  char text[160];
  std::snprintf(text, sizeof text, "%s%s job %u seq %u slot %u token %x%s%s", h.op < 4 ? kOps[h.op] : "?",
                h.flags & wire::kFlagPayload ? "" : " without words", h.job, h.seq, h.slot, h.token,
                h.flags & wire::kFlagRetransmission ? ", again" : "", h.reply ? ", with a reply" : "");
  return text;
}

Network::Network(uint64_t seed, const Conditions& conditions, const std::set<uint64_t>* only)
    : seed_(seed), conditions_(conditions), only_(only), started_(virtual_ns) {}

void Network::add(Host& host) {
  host.network = this;
  host.number = static_cast<uint32_t>(hosts_.size());
  hosts_.push_back(&host);
}

void Network::start() {
  links_.resize(hosts_.size() * hosts_.size());
  for (uint32_t i = 0; i < conditions_.foreign.size(); ++i)
    if (happens(timed_id(List::foreign, i)))
      push(started_ + conditions_.foreign[i].at, What::foreign, conditions_.foreign[i].host, i);
}

void Network::wake(Host& host, int64_t at) {
  if (at >= host.wake_at) return;
  host.wake_at = at;
  push(at, What::waking, host.number, 0);
}

void Network::cut(uint32_t one, uint32_t other, bool down) {
  const auto link = std::minmax(one, other);
  if (down) cut_.insert(link);
  else cut_.erase(link);
}

int64_t Network::stopped_until(const Host& host) const {
  if (host.stopped > virtual_ns) return host.stopped;
  const int64_t time = virtual_ns - started_;
  for (size_t i = 0; i < conditions_.stops.size(); ++i) {
    const Conditions::Stop& stop = conditions_.stops[i];
    if (stop.host == host.number && time >= stop.from && time < stop.to && happens(timed_id(List::stop, i)))
      return stop.to == kNever ? kNever : started_ + stop.to;
  }
  return 0;
}

void Network::meets(uint64_t id, Fault fault, const Host& from, const Host& to, std::span<const uint8_t> packet) {
  if (met_.empty() || met_.back() != id) met_.push_back(id);
  if (packet.size() < wire::kHeaderBytes) return;
  ++cells[from.is_switch && to.is_switch][static_cast<size_t>(state_of(packet))][static_cast<size_t>(fault)];
  if (!timeline_) return;
  note("    " + std::string(kFaultNames[static_cast<size_t>(fault)]) + ", " + std::to_string(from.number) + " to " +
       std::to_string(to.number) + ": " + describe(packet));
}

void Network::send(Host& from, Endpoint to, Segment segment, uint16_t from_port) {
  Host& target = *hosts_[to.ip - endpoint_of(0).ip];
  const std::span<const uint8_t> bytes(segment.data, segment.size);
  const uint32_t number = from.number * static_cast<uint32_t>(hosts_.size()) + target.number;
  Link& link = links_[number];
  const uint64_t id = uint64_t{number} << 40 | link.sent++;
  const int64_t time = virtual_ns - started_;
  ++packets_;
  for (size_t i = 0; i < conditions_.outages.size(); ++i) {
    const Conditions::Outage& o = conditions_.outages[i];
    const bool here = (o.one == from.number && o.other == target.number) || (o.other == from.number && o.one == target.number);
    if (here && time >= o.from && time < o.to && happens(timed_id(List::outage, i)))
      return meets(timed_id(List::outage, i), Fault::link_down, from, target, bytes);
  }
  const auto count = [&](Fault fault) {
    ++cells[from.is_switch && target.is_switch][static_cast<size_t>(state_of(bytes))][static_cast<size_t>(fault)];
  };
  if (!cut_.empty() && cut_.contains(std::minmax(from.number, target.number))) {
    if (timeline_) note("    link down, " + std::to_string(from.number) + " to " + std::to_string(target.number));
    return count(Fault::link_down);
  }
  const Conditions& c = conditions_;
  link.free_at = std::max(link.free_at, virtual_ns);
  if (link.free_at - virtual_ns > c.queue) {
    if (timeline_) note("    queue full, " + std::to_string(from.number) + " to " + std::to_string(target.number));
    return count(Fault::queue_full);  // what the load does, not a fault that can be left out
  }
  // The time on the link: with the headers of Ethernet, IP and UDP.
  link.free_at += static_cast<int64_t>(c.ns_per_byte * (segment.size + 66));
  const uint64_t drawn = mix(seed_, id), amount = mix(drawn);
  int64_t at = link.free_at + c.delay + static_cast<int64_t>(unit(mix(amount)) * static_cast<double>(c.jitter));
  double u = unit(drawn);
  const bool may = happens(id);
  const auto drawn_one = [&](double p) { return (u -= p) < 0; };
  Host::Packet packet{copy_of(bytes), endpoint_of(from.number, from_port), to.port,
                      (from.is_switch ? target : from).incarnation};
  if (may && drawn_one(c.lost)) return meets(id, Fault::lost, from, target, bytes);
  // The receiver's checksum finds it. Anything that a checksum cannot find has the bytes of a foreign packet.
  if (may && drawn_one(c.damaged)) return meets(id, Fault::damaged, from, target, bytes);
  if (may && drawn_one(c.reordered)) {
    meets(id, Fault::reordered, from, target, bytes);
    at += static_cast<int64_t>(unit(amount) * static_cast<double>(c.reordered_by));
  } else if (may && drawn_one(c.twice)) {
    meets(id, Fault::twice, from, target, bytes);
    arrive_later(at + static_cast<int64_t>(unit(amount) * static_cast<double>(c.reordered_by)), target, packet);
  } else if (may && drawn_one(c.twice_late)) {
    meets(id, Fault::twice_late, from, target, bytes);
    arrive_later(at + static_cast<int64_t>(unit(amount) * static_cast<double>(c.late_by)), target, packet);
  }
  arrive_later(at, target, std::move(packet));
}

void Network::arrive_later(int64_t at, const Host& to, Host::Packet packet) {
  uint32_t index;
  if (free_.empty()) {
    index = static_cast<uint32_t>(flying_.size());
    flying_.push_back(std::move(packet));
  } else {
    index = free_.back();
    free_.pop_back();
    flying_[index] = std::move(packet);
  }
  push(at, What::arrival, to.number, index);
}

void Network::arrive(Host& host, Host::Packet& packet) {
  Host& from = *hosts_[packet.from.ip - endpoint_of(0).ip];
  if (!host.listens(packet.to_port)) {
    if (timeline_) note("    refused by " + std::to_string(host.number) + ": " + describe(packet.bytes));
    return from.refused(packet.from.port);
  }
  const auto count = [&](Fault fault) {
    ++cells[from.is_switch && host.is_switch][static_cast<size_t>(state_of(packet.bytes))][static_cast<size_t>(fault)];
  };
  if (packet.incarnation != (from.is_switch ? host : from).incarnation) count(Fault::former_job);
  if (stopped_until(host)) count(Fault::while_stopped);
  if (host.inbox.size() >= conditions_.inbox) {
    count(Fault::inbox_full);
    if (timeline_) note("    inbox full at " + std::to_string(host.number));
    return;
  }
  hash_ = mix(hash_, static_cast<uint64_t>(virtual_ns));
  for (size_t i = 0; i + 8 <= packet.bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, &packet.bytes[i], 8);
    hash_ = (hash_ ^ word) * 0x100000001B3;
  }
  if (timeline_) note(std::to_string(from.number) + " -> " + std::to_string(host.number) + "  " + describe(packet.bytes));
  capture(from, host, packet.bytes);
  if (!conditions_.foreign.empty()) host.last = packet;
  host.inbox.push_back(std::move(packet));
  wake(host, virtual_ns + 1 + static_cast<int64_t>(unit(mix(hash_)) * static_cast<double>(conditions_.latency)));
}

// A packet that must change nothing: like the last one that the host got, with one thing that is not right.
void Network::make_foreign(const Conditions::Foreign& foreign) {
  Host& host = *hosts_[foreign.host];
  if (host.last.bytes.empty()) return;
  Host::Packet packet = host.last;
  wire::Header h = wire::Header::parse(packet.bytes.data());
  const uint32_t bits = 1 + static_cast<uint32_t>(foreign.drawn >> 8) % 0xFFFF;
  // The last one has been seen. One that is new, and somebody's next, has the slot after it, or the same one a round later.
  // A wrong slot could be the right one of another sequence number.
  const uint64_t ahead = foreign.drawn % 7 == 1 ? 0 : foreign.drawn >> 40;
  if (ahead % 4 == 1) ++h.seq, ++h.slot;
  if (ahead % 4 > 1) h.seq += 2u << ahead / 4 % 6;
  bool cut = false;
  switch (foreign.drawn % 7) {
    case 0: h.token ^= bits; break;
    case 1: h.slot ^= static_cast<uint16_t>(bits); break;
    case 2: h.job ^= static_cast<uint16_t>(bits); break;
    case 3: h.version ^= 1 + bits % 15; break;
    // A switch takes no RESULT from a worker, and no INIT over the network; a worker takes RESULTs only.
    case 4: h.op = static_cast<uint8_t>(wire::Op::INIT); break;
    case 5: cut = true; break;
    default:
      // A jump of some rounds forward, from somebody with the right token: of a worker to a switch.
      if (host.is_switch && h.op != static_cast<uint8_t>(wire::Op::RESULT)) h.seq += 0x10000000;
      else h.token ^= bits;
  }
  h.write(packet.bytes.data());
  for (size_t i = wire::kHeaderBytes; i < packet.bytes.size(); ++i)
    packet.bytes[i] = static_cast<uint8_t>(mix(foreign.drawn, i));
  if (cut) packet.bytes.resize(wire::kHeaderBytes - 1 + (packet.bytes.size() > wire::kHeaderBytes ? 2 : 0));
  const Host& from = *hosts_[packet.from.ip - endpoint_of(0).ip];
  if (packet.bytes.size() >= wire::kHeaderBytes)
    ++cells[from.is_switch && host.is_switch][static_cast<size_t>(state_of(host.last.bytes))][static_cast<size_t>(Fault::foreign)];
  if (timeline_) note("    foreign, to " + std::to_string(host.number) + ": " + describe(packet.bytes));
  if (host.inbox.size() >= conditions_.inbox) return;
  host.inbox.push_back(std::move(packet));
  wake(host, virtual_ns + 1);
}

bool Network::step() {
  if (events_.empty()) return false;
  const Event event = events_.first();
  events_.pop();
  virtual_ns = event.at;
  Host& host = *hosts_[event.host];
  if (event.what == What::arrival) {
    Host::Packet packet = std::move(flying_[event.index]);
    free_.push_back(event.index);
    arrive(host, packet);
  } else if (event.what == What::foreign) {
    met_.push_back(timed_id(List::foreign, event.index));
    make_foreign(conditions_.foreign[event.index]);
  } else if (host.wake_at == event.at) {
    host.wake_at = kNever;
    if (const int64_t until = stopped_until(host)) {
      const int64_t time = virtual_ns - started_;
      for (size_t i = 0; i < conditions_.stops.size(); ++i) {
        const Conditions::Stop& stop = conditions_.stops[i];
        if (stop.host == host.number && time >= stop.from && time < stop.to) met_.push_back(timed_id(List::stop, i));
      }
      if (until != kNever) wake(host, until);
      return true;
    }
    host.run();
  }
  return true;
}

// ------------------------------------------------------------------------------------------------ for people to read

void Network::note(const std::string& what) {
  if (timeline_) std::fprintf(timeline_, "%14.3f us  %s\n", static_cast<double>(virtual_ns - started_) / 1e3, what.c_str());
}

void Network::record_in(FILE* timeline, FILE* capture) {
  timeline_ = timeline;
  capture_ = capture;
  const uint32_t head[] = {0xA1B23C4D, 4 << 16 | 2, 0, 0, 65535, 101};  // nanoseconds; raw IP
  if (capture_) std::fwrite(head, sizeof head, 1, capture_);
}

void Network::capture(const Host& from, const Host& to, std::span<const uint8_t> packet) {
  if (!capture_) return;
  uint8_t ip[28] = {0x45};
  const uint32_t size = static_cast<uint32_t>(packet.size() + sizeof ip);
  wire::store16(ip + 2, static_cast<uint16_t>(size));
  ip[8] = 64;
  ip[9] = 17;
  wire::store32(ip + 12, endpoint_of(from.number).ip);
  wire::store32(ip + 16, endpoint_of(to.number).ip);
  uint32_t sum = 0;
  for (size_t i = 0; i < 20; i += 2) sum += wire::load16(ip + i);
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  wire::store16(ip + 10, static_cast<uint16_t>(~sum));
  const auto port = [](const Host& host) { return static_cast<uint16_t>(host.is_switch ? wire::kDefaultPort : 1000); };
  wire::store16(ip + 20, port(from));
  wire::store16(ip + 22, port(to));
  wire::store16(ip + 24, static_cast<uint16_t>(packet.size() + 8));
  const int64_t time = virtual_ns - started_;
  const uint32_t head[] = {static_cast<uint32_t>(time / kSecond), static_cast<uint32_t>(time % kSecond), size, size};
  std::fwrite(head, sizeof head, 1, capture_);
  std::fwrite(ip, sizeof ip, 1, capture_);
  std::fwrite(packet.data(), packet.size(), 1, capture_);
}

}  // namespace simulation
