#include "worker_lib/native/engine.h"

#include <algorithm>
#include <cfenv>
#include <chrono>

#include "switchagg/native/udp_port.h"
#include "switchagg/native/wire.h"

namespace switchagg {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint32_t batch_of(uint32_t stride) {
  return static_cast<uint32_t>(std::max<size_t>(1, std::min(kMaxSegments, kMaxBatchBytes / stride)));
}

// Callers may have set flush-to-zero or another rounding; the codec's arithmetic is defined without.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { fesetenv(&saved_); }

 private:
  fenv_t saved_;
};

constexpr uint64_t kScanBudget = 1 << 20;  // elements between two looks at the clock and at the port

}  // namespace

Engine::Engine(std::unique_ptr<Port> port, const Membership& membership)
    : port_(std::move(port)),
      membership_(membership),
      stride_(wire::kHeaderBytes + 4 * membership.words),
      window_(membership.slots, batch_of(stride_), membership.window_limit),
      ring_(new uint8_t[static_cast<size_t>(membership.slots) * stride_]),
      has_payload_(membership.slots) {
  received_.reserve(1024);
}

Engine::~Engine() {
  if (!abandoned_) close();
}

// The driver holds the mutex for as long as it has work; it lets others in between two steps when it sees them here.
std::unique_lock<std::mutex> Engine::contend() {
  contenders_.fetch_add(1);
  std::unique_lock lock(mutex_);
  contenders_.fetch_sub(1);
  return lock;
}

void Engine::abandon() {
  abandoned_ = true;
  port_->abandon();
  if (thread_) (void)new std::thread(std::move(*thread_));  // it does not exist in this process: never join it
  thread_.reset();
}

void Engine::submit(std::shared_ptr<Collective> work, int64_t timeout_ns, bool background) {
  auto lock = contend();
  work->call.position = calls_++;
  if (broken_) {
    work->status = Status::aborted;
    return;
  }
  work->deadline = timeout_ns < 0 ? INT64_MAX : now_ns() + timeout_ns;
  queue_.push_back(std::move(work));
  ++stats_.collectives;
  if (driving_) {
    port_->wake();
  } else if (background) {
    background_wanted_ = true;
    if (!thread_) thread_.emplace([this] { this->background(); });
    changed_.notify_all();
  }
}

Status Engine::wait(Collective& work, int64_t slice_ns) {
  auto lock = contend();
  const int64_t until = now_ns() + slice_ns;
  while (work.status == Status::pending) {
    const int64_t now = now_ns();
    if (now >= until) break;
    if (driving_) {
      changed_.wait_for(lock, std::chrono::nanoseconds(until - now));
      continue;
    }
    drive(lock, &work, until);
  }
  return work.status;
}

void Engine::background() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (!background_wanted_ || driving_ || queue_.empty()) {
      if (queue_.empty()) background_wanted_ = false;
      changed_.wait(lock);
      continue;
    }
    drive(lock, nullptr, INT64_MAX);
  }
}

void Engine::abort() {
  auto lock = contend();
  broken_ = true;
  // Whoever drives holds the mutex while it touches buffers; it sees the empty queue when it gets the mutex back.
  break_all(Status::aborted);
  port_->wake();
}

void Engine::close() {
  {
    auto lock = contend();
    closing_ = true;
    broken_ = true;
    break_all(Status::aborted);
    port_->wake();
    changed_.notify_all();
  }
  if (thread_) thread_->join();
  thread_.reset();
}

EngineStats Engine::stats() {
  auto lock = contend();
  EngineStats s = stats_;
  s.retransmissions = window_.repeats();
  s.srtt_ns = window_.srtt();
  s.rto_ns = window_.rto();
  s.cwnd = window_.cwnd();
  return s;
}

PortCounters Engine::port_counters() {
  auto lock = contend();
  return port_->counters();
}

int64_t Engine::silence_ns() {
  auto lock = contend();
  return queue_.empty() || heard_ == 0 ? 0 : now_ns() - heard_;
}

void Engine::break_all(Status status) {
  for (auto& c : queue_) c->status = status;
  queue_.clear();
  sending_ = 0;
  changed_.notify_all();
}

// Runs the engine until `until` is finished, nothing is left, or the clock reaches `until_ns`. Enters and leaves with
// the lock held.
void Engine::drive(std::unique_lock<std::mutex>& lock, Collective* until, int64_t until_ns) {
  const DefaultArithmetic arithmetic;
  driving_ = true;
  int64_t now = now_ns();
  if (heard_ == 0 || window_.outstanding() == 0) heard_ = now;
  while (!queue_.empty() && !closing_ && (!until || until->status == Status::pending)) {
    bool busy = advance();
    busy |= send_new(now);
    now = now_ns();
    busy |= receive(now);
    now = now_ns();
    if (queue_.empty() || (until && until->status != Status::pending)) break;
    if (now >= queue_.front()->deadline) {
      broken_ = true;
      queue_.front()->status = Status::timeout;
      break_all(Status::timeout);
      break;
    }
    if (now >= until_ns) break;
    if (contenders_.load()) {
      lock.unlock();
      while (contenders_.load()) std::this_thread::yield();
      lock.lock();
      continue;
    }
    if (busy) continue;
    busy = resend(now);
    if (busy) continue;
    const int64_t timer = window_.next_timer();
    int64_t limit = std::min(queue_.front()->deadline, until_ns);
    if (timer >= 0) limit = std::min(limit, timer);
    limit = std::max<int64_t>(limit - now, 0);
    lock.unlock();
    port_->wait(std::min<int64_t>(limit, 1000000000));
    lock.lock();
    const int64_t woke = now_ns();
    stats_.wait_ns += woke - now;
    now = woke;
  }
  driving_ = false;
  // Somebody else may have work left, or be waiting for what was finished here.
  changed_.notify_all();
}

// Takes the sending collective to its next phase where that needs no packet. True if a step was made.
bool Engine::advance() {
  if (sending_ >= queue_.size()) return false;
  Collective& c = *queue_[sending_];
  if (!c.plan) {
    c.start = window_.next();
    c.plan = std::make_unique<Plan>(c.call, membership_.words);
    c.plan_packets = c.plan->packets();
    c.end = c.start + c.plan_packets;
  }
  if (!c.plan->scanned() && (c.plan->needs_scan(0) || window_.next() > c.start)) {
    const int64_t before = now_ns();
    c.plan->scan(kScanBudget);
    stats_.scan_ns += now_ns() - before;
    return true;
  }
  return false;
}

// How many positions the sending collective has ready.
uint32_t Engine::sendable() const {
  if (sending_ >= queue_.size()) return 0;
  const Collective& c = *queue_[sending_];
  if (!c.plan) return 0;
  const uint64_t next = window_.next();
  uint64_t limit;
  if (next == c.start) {
    limit = c.plan->needs_scan(0) && !c.plan->scanned() ? c.start : c.start + 1;
  } else if (!c.opened) {
    limit = c.start + 1;
  } else if (next < c.start + c.plan_packets) {
    limit = c.plan->scanned() ? c.start + c.plan_packets : next;
  } else {
    limit = c.stream ? c.end : next;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(limit - next, membership_.slots));
}

bool Engine::build(Collective& c, uint64_t position) {
  uint8_t* to = record(position);
  uint8_t* payload = to + wire::kHeaderBytes;
  const bool plan = position - c.start < c.plan_packets;
  const bool filled = plan ? c.plan->encode(position - c.start, payload)
                           : c.stream->encode(position - c.start - c.plan_packets, payload);
  wire::Header header;
  header.op = static_cast<uint8_t>(plan || c.call.op == ReduceOp::bit_or ? wire::Op::OR : wire::Op::SUM);
  header.flags = filled ? wire::kFlagPayload : 0;
  header.job = membership_.job;
  header.token = membership_.token;
  header.seq = membership_.first_seq + static_cast<uint32_t>(position);
  header.slot = static_cast<uint16_t>(membership_.base + (header.seq & (membership_.slots - 1)));
  header.write(to);
  has_payload_[position & (membership_.slots - 1)] = filled;
  return filled;
}

bool Engine::send_new(int64_t now) {
  const uint32_t batch = window_.batch();
  uint32_t count = std::min(sendable(), window_.room());
  if (count == 0) return false;
  // A part of a batch is worth sending only if nothing more can join it now.
  count = std::min(count, batch);
  Collective& c = *queue_[sending_];
  const int64_t before = now_ns();
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t position = window_.next() + i;
    const bool filled = build(c, position);
    (filled ? data_ : skips_).push_back({record(position), filled ? stride_ : wire::kHeaderBytes});
  }
  stats_.data_packets += data_.size();
  stats_.skip_packets += skips_.size();
  const int64_t built = now_ns();
  stats_.quantize_ns += built - before;
  window_.sent(count, now);
  transmit();
  if (window_.next() == c.end && c.stream) ++sending_;
  return true;
}

void Engine::transmit() {
  const int64_t before = now_ns();
  const Endpoint to[] = {membership_.switch_at};
  port_->send(to, data_);
  port_->send(to, skips_);
  data_.clear();
  skips_.clear();
  stats_.send_ns += now_ns() - before;
}

bool Engine::resend(int64_t now) {
  due_.clear();
  window_.due(now, due_);
  if (due_.empty()) return false;
  for (uint64_t position : due_) {
    uint8_t* to = record(position);
    const bool filled = has_payload_[position & (membership_.slots - 1)];
    to[wire::kFlagsOffset] |= wire::kFlagRetransmission;
    (filled ? data_ : skips_).push_back({to, filled ? stride_ : wire::kHeaderBytes});
  }
  transmit();
  return true;
}

bool Engine::receive(int64_t now) {
  received_.clear();
  port_->receive(received_);
  const int64_t got = now_ns();
  stats_.receive_ns += got - now;
  if (received_.empty()) return false;
  accepted_.clear();
  for (const Received& r : received_) {
    if (r.size != wire::kHeaderBytes && r.size != stride_) {
      ++stats_.ignored;
      continue;
    }
    const wire::Header h = wire::Header::parse(r.data);
    const bool filled = h.flags & wire::kFlagPayload;
    // The position nearest to the window's base with this sequence number.
    const int32_t ahead =
        static_cast<int32_t>(h.seq - membership_.first_seq - static_cast<uint32_t>(window_.base()));
    if (h.version != wire::kVersion || h.op != static_cast<uint8_t>(wire::Op::RESULT) || h.job != membership_.job ||
        h.token != membership_.result_token || filled != (r.size == stride_) ||
        h.slot != membership_.base + (h.seq & (membership_.slots - 1)) || ahead < 0 ||
        !window_.accept(window_.base() + static_cast<uint64_t>(ahead))) {
      ++stats_.ignored;
      continue;
    }
    const uint64_t position = window_.base() + static_cast<uint64_t>(ahead);
    accepted_.push_back(position);
    take(position, filled ? r.data + wire::kHeaderBytes : nullptr);
  }
  stats_.results += accepted_.size();
  const int64_t decoded = now_ns();
  stats_.decode_ns += decoded - got;
  if (!accepted_.empty()) {
    heard_ = decoded;
    window_.settle(accepted_, got);
    resend(decoded);
  }
  return true;
}

// One RESULT, already accepted by the window.
void Engine::take(uint64_t position, const uint8_t* payload) {
  size_t index = 0;
  while (index < queue_.size() && (!queue_[index]->plan || position >= queue_[index]->end)) ++index;
  if (index == queue_.size() || position < queue_[index]->start) return;
  Collective& c = *queue_[index];
  const uint64_t packet = position - c.start;
  ++c.results;
  if (packet >= c.plan_packets) {
    c.stream->decode(packet - c.plan_packets, payload);
  } else {
    c.plan->decode(packet, payload);
    ++c.plan_results;
    if (packet == 0) {
      c.opened = true;
      if (c.plan->mismatch(c.difference)) {
        // Every rank sees the same, sends nothing more of this collective, and goes on to the next one.
        c.end = c.start + 1;
        ++sending_;
        return complete(c, Status::mismatch);
      }
      c.policy = c.plan->agreed_policy();
    }
    if (c.plan_results == c.plan_packets) open_stream(c);
  }
  if (c.stream && c.results == c.end - c.start) {
    c.stream->finish();
    complete(c, Status::done);
  }
}

void Engine::open_stream(Collective& c) {
  const int64_t before = now_ns();
  c.stream = std::make_unique<Stream>(c.call, c.call.kind == Kind::floor ? nullptr : c.plan.get(), membership_.words);
  c.stream_packets = c.stream->packets();
  c.end += c.stream_packets;
  stats_.blocks_total += c.call.blocks();
  stats_.blocks_union += c.stream->union_blocks();
  stats_.scan_ns += now_ns() - before;
  // An empty stream has nothing left to send: the next collective may begin.
  if (window_.next() == c.end) ++sending_;
}

void Engine::complete(Collective& c, Status status) {
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    if (it->get() == &c) {
      const auto keep = *it;  // the caller may hold the only other reference
      queue_.erase(it);
      --sending_;
      keep->plan.reset();
      keep->stream.reset();
      keep->status = status;
      break;
    }
  }
  changed_.notify_all();
}

}  // namespace switchagg
