#include "switchagg/native/worker/slots_port.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/link.h"
#include "switchagg/native/worker/link_port.h"

namespace switchagg {
namespace {

// RESULTs in one receive(): what was added up is decoded from the cache. Of many workers fewer: more records fill it, and more wait.
constexpr size_t kTake = 16, kTakeOfMany = 8;
constexpr uint32_t kMany = 8;
constexpr size_t kSlotsAhead = 4;  // so many are prefetched
constexpr size_t kLook = 16;  // packets without RESULT that are passed over: more of them are rarely out of order
constexpr int64_t kPoll = 200'000;  // while no other worker of the core has work: about the turn of one on another core
constexpr int64_t kMovePause = 10'000'000;  // between two moves to another core, of which the kernel may undo one
// Then a worker looks: is the switch there, and was a wake-up missed, as where its sender died? Idle, it asks the first alone.
constexpr int64_t kLookAround = 100'000'000, kLookAroundIdle = 1'000'000'000;

}  // namespace

SlotsPort::SlotsPort(std::unique_ptr<UdpPort>& udp, const std::string& name, Endpoint peer, uint16_t job, uint32_t token,
                     uint32_t slots, uint32_t words)
    : peer_(peer), local_(udp->local()), socket_(connect_to_switch(name)) {
  const link::Attach request{link::kMagic, job, token, {}};
  const int descriptor = udp->descriptor();
  if (!send_message(socket_.get(), request, {&descriptor, 1})) fail_refused("the switch does not listen");
  link::AttachedSlots answer;
  std::array<Descriptor, 1> given;
  if (!receive_message(socket_.get(), answer, given, true) || answer.magic != link::kMagic || !given[0])
    fail_refused("the switch refused");
  const SharedSlots::Shape shape{answer.workers, answer.slots, answer.words};
  if (!shape.valid() || answer.worker >= answer.workers || shape.slots != slots || shape.words != words)
    fail_refused("the switch has other slots");
  auto mapped = SharedMemory::map(std::move(given[0]), shape.bytes(), true);
  if (!mapped) fail("mmap");
  const auto memory = std::make_shared<SharedMemory>(std::move(*mapped));
  slots_ = SharedSlots(memory->get(), shape);
  worker_ = answer.worker;
  sums_ = std::make_shared<SharedSums>(memory, shape.sums_at(), shape.workers, worker_);
  heard_ = slots_.wake_ups(worker_).load(std::memory_order_acquire);
  udp_ = std::move(udp);
}

uint8_t* SlotsPort::packet_memory(size_t bytes) {
  if (bytes > slots_.shape().records_bytes()) throw std::system_error(EINVAL, std::generic_category(), "packet memory");
  return slots_.record(worker_, 0);
}

void SlotsPort::abandon() {
  socket_.reset();
  udp_->abandon();
  slots_ = SharedSlots();
  sums_.reset();
}

void SlotsPort::wake() {
  if (sums_) SharedSlots::wake(slots_.wake_ups(worker_));
}

// A RESULT can be received, or made, or something can be done for a sum without slots.
bool SlotsPort::there() const {
  if (sums_->next() && !fenced()) return true;
  size_t looked = 0;
  for (size_t i = first_; i < pending_.size() && looked < kLook; ++i) {
    if (pending_[i].received) continue;
    if (slots_.done(pending_[i].seq) || slots_.is_unclaimed(pending_[i].seq)) return true;
    ++looked;
  }
  return false;
}

// Moves this thread to a core with fewer workers. Those that poll are always runnable, and among cores of which none is idle the
// kernel evens threads out only after tens of milliseconds. In a virtual machine it was also seen to wake a thread on the core of
// whoever woke it, while its own slept.
void SlotsPort::spread() {
  const int core = sched_getcpu();
  slots_.note_core(worker_, core);
  const int64_t now = now_ns();
  if (now < may_move_) return;
  cpu_set_t allowed;
  if (now >= may_look_) {
    may_look_ = now + kMovePause;
    cores_.clear();
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
      for (int each = 0; each < CPU_SETSIZE; ++each)
        if (CPU_ISSET(each, &allowed)) cores_.push_back(each);
  }
  const int to = slots_.emptier(core, cores_);
  if (to < 0) return;
  may_move_ = now + kMovePause;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !CPU_ISSET(to, &allowed)) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(to, &one);
  slots_.note_core(worker_, to);  // before another worker of this core can look
  if (sched_setaffinity(0, sizeof one, &one) != 0) return;
  cpu_set_t found;  // another mask, if somebody else has set one meanwhile
  if (sched_getaffinity(0, sizeof found, &found) != 0 || CPU_EQUAL(&found, &one)) sched_setaffinity(0, sizeof allowed, &allowed);
  ++moves_;
}

bool SlotsPort::woken() {
  const uint32_t wake_ups = slots_.wake_ups(worker_).load(std::memory_order_acquire);
  return std::exchange(heard_, wake_ups) != wake_ups;
}

bool SlotsPort::ended() {
  pollfd fds{socket_.get(), POLLRDHUP, 0};
  if (!ended_ && ::poll(&fds, 1, 0) > 0) ended_ = true;
  return ended_;
}

// Yields the processor until something is there, as long as no other worker of this core has work, or this one waits for little.
bool SlotsPort::poll() {
  const auto there_or_woken = [this] { return there() || woken(); };
  if (there_or_woken()) return true;
  std::atomic<uint32_t>& polls = slots_.polls(worker_);
  polls.store(1, std::memory_order_relaxed);
  const bool found = link::yield_while(there_or_woken, [this](int64_t spent) {
    if (busy_poll_ && spent < link::kBusyPollNs) return true;
    return spent < kPoll && (first_ < pending_.size() || sums_->waits()) && !slots_.others_work(worker_);
  });
  polls.store(0, std::memory_order_relaxed);
  return found;
}

bool SlotsPort::wait(int64_t timeout_ns) {
  if (woken()) return true;
  if (timeout_ns == 0) return there();
  spread();
  if (poll()) return true;
  std::atomic<uint32_t>& asleep = slots_.asleep(worker_);
  const int64_t look_around = first_ == pending_.size() && !sums_->waits() ? kLookAroundIdle : kLookAround;
  for (int64_t left = timeout_ns;;) {
    asleep.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool found = there();
    const int64_t limit = left < 0 ? look_around : std::min(left, look_around);
    if (!found) SharedSlots::sleep(slots_.wake_ups(worker_), heard_, limit);
    asleep.store(0, std::memory_order_relaxed);
    slots_.note_core(worker_, sched_getcpu());
    ++waits_;
    if (found || woken() || there() || ended()) return true;
    if (timeout_ns >= 0 && (left -= limit) <= 0) return false;
  }
}

void SlotsPort::receive(std::vector<Received>& into) {
  counters_.receive_calls = waits_;
  counters_.core_moves = moves_;
  if (ended_) ++counters_.refused;  // at each call, as for packets to a closed UDP port
  const size_t most = slots_.shape().workers < kMany ? kTake : kTakeOfMany;
  size_t looked = 0, taken = 0;
  bool added = false;
  for (size_t i = first_; i < pending_.size() && looked < kLook && taken < most; ++i) {
    Pending& pending = pending_[i];
    if (i + kSlotsAhead < pending_.size()) slots_.fetch(pending_[i + kSlotsAhead].seq);
    if (pending.received) continue;
    if (!slots_.done(pending.seq)) {
      if (!slots_.is_unclaimed(pending.seq) || !slots_.finish(pending.seq, pending.used)) {
        ++looked;
        continue;
      }
      added = true;
    }
    pending.received = true;
    ++taken;
    const SharedSlots::Words result = slots_.result(pending.seq);
    const uint32_t size = result.words ? slots_.shape().stride() : wire::kHeaderBytes;
    into.push_back({result.header, size, peer_, result.words});
    ++counters_.packets_in;
    counters_.bytes_in += size;
  }
  while (first_ < pending_.size() && pending_[first_].received) ++first_;
  if (first_ == pending_.size() || first_ > slots_.shape().slots) {
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  if (added) counters_.send_calls += slots_.wake_all();
}

void SlotsPort::send(std::span<const Endpoint>, std::span<const Segment> segments) {
  for (const Segment& segment : segments) slots_.fetch_to_write(wire::Header::parse(segment.data).seq);
  auto completed = completed_.begin();
  for (const Segment& segment : segments) {
    const wire::Header header = wire::Header::parse(segment.data);
    counters_.bytes_out += segment.size;
    ++counters_.packets_out;
    const bool is_completed = completed != completed_.end() && completed->first == header.seq;
    if (!is_completed && fenced()) {
      slots_.count_fenced(worker_);
      continue;
    }
    const bool is_or = header.op != static_cast<uint8_t>(wire::Op::SUM);
    const Effect effect = is_completed ? (completed++)->second
                                       : slots_.contribute(worker_, header.seq, segment.size > wire::kHeaderBytes, is_or);
    slots_.count(worker_, effect, header.flags & wire::kFlagRetransmission);
    if (effect.accepted || effect.outcome == Outcome::answered) pending_.push_back({header.seq, segment.used, false});
  }
  if (completed_.empty()) return;
  completed_.clear();
  counters_.send_calls += slots_.wake_all();
}

}  // namespace switchagg
