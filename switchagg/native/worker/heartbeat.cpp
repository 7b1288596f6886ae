#include "switchagg/native/worker/heartbeat.h"

#include <chrono>
#include <cstring>

#include "switchagg/native/shared/ip_address.h"
#include "switchagg/native/shared/thread.h"

namespace switchagg {
namespace {

// True for fields that are no counters: the round trip, the policy in force, and the lanes that it may choose.
constexpr bool is_gauge(size_t field) { return field == 19 || field == 40 || field == 41; }

void store(uint8_t* to, uint64_t value) {
  for (int i = 7; i >= 0; --i, value >>= 8) to[i] = static_cast<uint8_t>(value);
}

}  // namespace

Report report_of(Engine& engine) {
  const EngineStats s = engine.stats();
  const PortCounters p = engine.port_counters();
  const DensityCounts& d = s.density;
  const auto ns = [](int64_t t) { return static_cast<uint64_t>(t < 0 ? 0 : t); };
  return {s.completed,       s.elements,         s.bytes_reduced,  p.packets_out,      p.packets_in,
          p.bytes_out,       p.bytes_in,         s.retransmissions, s.blocks_total,    s.blocks_own,
          s.blocks_union,    ns(s.scan_ns),      ns(s.quantize_ns), ns(s.send_ns),     ns(s.receive_ns),
          ns(s.wait_ns),     ns(s.decode_ns),    ns(s.plan_ns),     ns(s.busy_ns),     ns(s.srtt_ns),
          s.packet_numbers,       64 * d.groups,      d.own[0],         d.own[1],           d.own[2],
          d.own[3],          d.own[4],           d.own[5],         d.own[6],           64 * d.summed,
          d.sum[0],          d.sum[1],           d.sum[2],         d.sum[3],           d.sum[4],
          d.sum[5],          d.sum[6],           s.policy_collectives, s.policy_elements, ns(s.policy_ns),
          s.policy_word,     s.policy_lanes,     s.exact_elements, s.bounded_elements, s.refined_elements};
}

std::array<uint8_t, kHeartbeatBytes> heartbeat(const Cookie& cookie, uint64_t sequence, const Report& report) {
  std::array<uint8_t, kHeartbeatBytes> out{'S', 'A', 'H', 'B', 1, static_cast<uint8_t>(kReportFields), 0, 0};
  std::memcpy(out.data() + 8, cookie.data(), cookie.size());
  store(out.data() + 24, sequence);
  for (size_t i = 0; i < report.size(); ++i) store(out.data() + 32 + 8 * i, report[i]);
  return out;
}

HeartbeatSender::HeartbeatSender(Engine& engine) : engine_(engine) { open(AF_INET); }

HeartbeatSender::~HeartbeatSender() {
  if (!abandoned_) close();
}

void HeartbeatSender::open(int family) {
  socket_ = Descriptor(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) fail("socket");
}

void HeartbeatSender::start(Endpoint to, const Cookie& cookie, int64_t interval_ns) {
  const Report now = report_of(engine_);
  std::unique_lock lock(mutex_);
  if (closing_) return;
  if (SocketAddress::family_of(to) != SocketAddress::family_of(to_)) open(SocketAddress::family_of(to));
  to_ = to;
  cookie_ = cookie;
  interval_ns_ = interval_ns;
  baseline_ = now;
  started_ = true;
  if (!thread_) thread_ = start_thread([this] { run(); });
  changed_.notify_all();
}

void HeartbeatSender::close() {
  std::optional<std::thread> thread;  // the first of several callers joins it
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    thread.swap(thread_);
  }
  if (!thread) return;
  thread->join();
  std::unique_lock lock(mutex_);
  socket_.reset();
}

void HeartbeatSender::abandon() {
  abandoned_ = true;
  socket_.reset();
  forget_thread(thread_, mutex_, changed_);
}

uint64_t HeartbeatSender::sent() {
  std::unique_lock lock(mutex_);
  return sequence_;
}

void HeartbeatSender::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    started_ = false;
    lock.unlock();
    Report report = report_of(engine_);
    lock.lock();
    if (closing_) break;
    for (size_t i = 0; i < report.size(); ++i)
      if (!is_gauge(i)) report[i] = report[i] > baseline_[i] ? report[i] - baseline_[i] : 0;
    const auto packet = heartbeat(cookie_, sequence_++, report);
    const SocketAddress to(to_);
    // A failure is like a lost datagram: the next heartbeat has all counters too.
    [[maybe_unused]] const auto n =
        sendto(socket_.get(), packet.data(), packet.size(), 0, to.get(), to.size());
    changed_.wait_for(lock, std::chrono::nanoseconds(interval_ns_), [this] { return closing_ || started_; });
  }
}

}  // namespace switchagg
