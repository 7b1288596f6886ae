// The engine's ways to its switches: one, or several to which packets are dealt (docs/protocol.md, section 16).
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "switchagg/native/worker/engine.h"

namespace switchagg {
namespace {

constexpr uint64_t kPeriod = 8;  // packets a slot, after which weights are looked at again

}  // namespace

Engine::Stripe::Stripe(Attachment way, uint32_t batch, size_t stride, bool shared_links, uint64_t first)
    : port(std::move(way.port)),
      at(std::move(way.admission)),
      window(at.slots, batch, at.window_limit, first, shared_links && at.link.empty(), at.threads, at.first_seq),
      ring(port->packet_memory(at.slots * stride)),
      has_payload(at.slots),
      readers(at.slots),
      held(at.slots) {}

void Engine::Stripe::push(uint64_t number, size_t stride, uint32_t used) {
  const bool filled = has_payload[index(number)];
  (filled ? data : skips).push_back({record(number, stride), filled ? static_cast<uint32_t>(stride) : wire::kHeaderBytes, used});
}

void Engine::Stripe::transmit() {
  const Endpoint to[] = {at.switch_at};
  port->send(to, data);
  port->send(to, skips);
  data.clear();
  skips.clear();
}

// Addresses a packet of an earlier switch to this one.
void Engine::Stripe::readdress(uint64_t number, size_t stride) {
  uint8_t* const packet = record(number, stride);
  wire::Header header = wire::Header::parse(packet);
  header.flags &= wire::kFlagPayload;
  address(header, number);
  header.reply = 0;
  direct(header, number);
  header.write(packet);
}

// Names the reader of a packet, where the switch knows of such.
void Engine::Stripe::direct(wire::Header& header, uint64_t number) const {
  const uint16_t reads = readers[index(number)];
  if (reads == 0 || at.receivers.empty()) return;
  header.flags |= wire::kFlagDirected;
  header.reply = at.receivers[reads - 1u];
}

void Engine::Stripe::address(wire::Header& header, uint64_t number) const {
  header.job = at.job;
  header.token = at.token;
  header.seq = seq(number);
  header.slot = static_cast<uint16_t>(at.base + (header.seq & (at.slots - 1)));
  if (window.shared()) header.flags |= wire::kFlagEct;
}

// Makes the stripes of a generation.
void Engine::attach(std::unique_ptr<Port> port, const Admission& admission, std::vector<Attachment> more) {
  std::vector<Stripe> made;
  made.reserve(1 + more.size());
  made.emplace_back(Attachment{std::move(port), admission}, batch(), stride_, shared_links_);
  for (Attachment& each : more) {
    const Admission& at = each.admission;
    if (at.slots != admission.slots || at.words != admission.words || at.rank != admission.rank || at.workers != admission.workers)
      throw std::invalid_argument("stripe " + std::to_string(made.size()) + " is of another job");
    made.emplace_back(std::move(each), batch(), stride_, shared_links_);
  }
  stripes_ = std::move(made);
  aside_ = PacketMemory(stride_ - wire::kHeaderBytes);
  std::vector<uint32_t> weights;
  for (const Stripe& each : stripes_) weights.push_back(each.at.weight);
  moved_ = false;
  summed_.clear();
  sums_ = stripes_.size() == 1 ? stripes_[0].port->sums() : nullptr;
  copies_.forget();
  rates_.reset();
  if (stripes_.size() > 1 && admission.rank == 0) rates_.emplace(weights, kPeriod * admission.slots * stripes_.size());
  deal_ = Deal(std::move(weights), admission.slots);
  directs_ = std::ranges::none_of(stripes_, [](const Stripe& each) { return each.at.receivers.empty(); });
  wait_for_all();
}

// Stripe 0's port waits for all.
void Engine::wait_for_all() {
  std::vector<int> others;
  for (const Stripe& each : stripes_)
    if (&each != stripes_.data()) others.push_back(each.port->descriptor());
  stripes_[0].port->also_wait_for(others);
}

// Keeps the counts of a stripe that ends.
void Engine::forget(const Stripe& stripe) {
  past_retransmissions_ += stripe.window.retransmissions();
  past_port_ += stripe.port->counters();
}

PortCounters Engine::port_counters() {
  auto lock = contend();
  PortCounters sum = past_port_;
  for (const Stripe& each : stripes_) sum += each.port->counters();
  return sum;
}

std::vector<uint64_t> Engine::refused() {
  auto lock = contend();
  std::vector<uint64_t> found;
  for (const Stripe& each : stripes_) found.push_back(each.port->counters().refused);
  return found;
}

std::vector<uint32_t> Engine::weights() {
  auto lock = contend();
  return deal_.weights();
}

std::pair<uint32_t, uint64_t> Engine::dealt(uint64_t packet_number) {
  auto lock = contend();
  const auto [stripe, number] = place_of(packet_number);
  return {stripe, number};
}

// Notes what the packets after those that were sent wait for: for a stripe without room, if others have much less outstanding.
void Engine::note_waiting(int64_t now, uint64_t sent) {
  if (!rates_ || sendable() == 0) return;
  const uint32_t turn = turn_of(next_packet_);
  const Window& full = stripes_[turn].window;
  const std::vector<uint32_t>& weights = deal_.weights();
  bool idle = false;
  for (size_t s = 0; s < stripes_.size(); ++s)
    idle |= 2 * uint64_t{stripes_[s].window.outstanding()} * weights[turn] < uint64_t{full.outstanding()} * weights[s];
  rates_->begin(now, sent, full.room() == 0 && idle ? std::optional(turn) : std::nullopt);
}

void Engine::on_ce(Stripe& stripe, uint64_t number, int64_t now) {
  ++stats_.marked;
  stripe.window.on_ce(number, now);
}

void Engine::transmit() {
  const int64_t before = clock_();
  for (Stripe& each : stripes_) each.transmit();
  stats_.send_ns += clock_() - before;
}

uint32_t Engine::outstanding() const {
  uint32_t sum = 0;
  for (const Stripe& each : stripes_) sum += each.window.outstanding();
  return sum;
}

int64_t Engine::loss_timer() const {
  int64_t earliest = -1;
  for (const Stripe& each : stripes_) {
    const int64_t timer = each.port->reliable() ? -1 : each.window.loss_timer();
    if (timer >= 0 && (earliest < 0 || timer < earliest)) earliest = timer;
  }
  return earliest;
}

bool Engine::probe(int64_t timeout_ns) {
  constexpr int kTimes = 5;  // packets get lost
  auto lock = contend();
  changed_.wait(lock, [this] { return !driving_; });
  if (!broken_ || closing_) return false;
  const Stripe& stripe = lowest_stripe();
  Port& port = *stripe.port;
  wire::Header asked;
  asked.op = static_cast<uint8_t>(wire::Op::SUM);
  asked.flags = wire::kFlagRetransmission;
  stripe.address(asked, stripe.window.base() - 1);
  uint8_t packet[wire::kHeaderBytes];
  asked.write(packet);
  const Endpoint to[] = {stripe.at.switch_at};
  const Segment segments[] = {{packet, wire::kHeaderBytes}};
  for (int i = 0; i < kTimes; ++i) {
    port.send(to, segments);
    const int64_t until = clock_() + timeout_ns / kTimes;
    for (int64_t left = timeout_ns / kTimes; left > 0; left = until - clock_()) {
      if (!port.wait(left)) break;
      received_.clear();
      port.receive(received_);
      for (const Received& r : received_) {
        if (r.size < wire::kHeaderBytes) continue;
        const wire::Header h = wire::Header::parse(r.header);
        if (h.op == static_cast<uint8_t>(wire::Op::RESULT) && h.job == asked.job &&
            h.token == stripe.at.result_token && h.seq == asked.seq)
          return true;
      }
    }
  }
  return false;
}

}  // namespace switchagg
