#include "switchagg/native/shared/shared_slots.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/kernel_choice.h"

namespace switchagg {

using wire::Header;

namespace {
constexpr size_t kCores = 1024;  // of more the kernel's mask is not asked
}

const SlotKernels& slot_kernels() {
  static const SlotKernels& best = chosen_of<SlotKernels>(KERNEL_SETS(slot_kernels));
  return best;
}

void copy_words(void* to, const void* from, size_t words) {
  slot_kernels().copy(static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), words);
}

Effect effect_of(const SlotRound& slot, uint32_t slots, uint32_t full, uint32_t seq, uint32_t bit, bool words, bool is_or) {
  const bool fresh = seq == slot.seq + slots;
  if (!fresh && seq != slot.seq) return {Outcome::stale};
  if (!fresh && slot.seen & bit) return {slot.seen == full ? Outcome::answered : Outcome::duplicate};
  const bool filled = !fresh && slot.filled;
  const uint32_t seen = (fresh ? 0 : slot.seen) | bit;
  Outcome outcome;
  if (!words) {
    outcome = fresh ? Outcome::fresh_skip : filled ? Outcome::skip : Outcome::empty_skip;
  } else if (!filled) {
    outcome = fresh ? Outcome::fresh_stored : Outcome::stored;
  } else {
    outcome = is_or ? Outcome::ored : Outcome::added;
  }
  return {outcome, true, seen == full, {seq, seen, filled || words}};
}

void SharedSlots::make(uint16_t job, uint32_t base, uint32_t result_token, const uint32_t* bits) {
  head_->job = job;
  head_->base = base;
  head_->result_token = result_token;
  for (uint32_t worker = 0; worker < shape_.workers; ++worker) {
    head_->seats[worker].bit = bits[worker];
    head_->full |= bits[worker];
  }
  for (uint32_t i = 0; i < shape_.slots; ++i) {
    slots_[i].state.store(kNew, std::memory_order_relaxed);
    // No sequence number of this slot: nothing is claimed or done.
    slots_[i].claimed.store(i ^ 1, std::memory_order_relaxed);
    slots_[i].done.store(i ^ 1, std::memory_order_release);
  }
}

void SharedSlots::initialise(uint32_t seq) {
  const uint32_t index = seq & mask_;
  Slot& slot = slots_[index];
  slot.words_of = kNobody;
  slot.state.store(pack({seq, head_->full, false}), std::memory_order_release);
  slot.claimed.store(seq, std::memory_order_relaxed);
  Header header;
  header.op = static_cast<uint8_t>(wire::Op::RESULT);
  header.job = head_->job;
  header.token = head_->result_token;
  header.seq = seq;
  header.slot = static_cast<uint16_t>(head_->base + index);
  header.write(result_record(index));
  slot.done.store(seq, std::memory_order_release);
}

Effect SharedSlots::contribute(uint32_t worker, uint32_t seq, bool words, bool is_or) {
  return bring(worker, seq, static_cast<uint8_t>((words ? kWords : 0) | (is_or ? kOr : 0)));
}

Effect SharedSlots::bring(uint32_t worker, uint32_t seq, uint8_t what) {
  const uint32_t index = seq & mask_, bit = head_->seats[worker].bit;
  Slot& slot = slots_[index];
  uint64_t before = slot.state.load(std::memory_order_acquire);
  for (;;) {
    const Effect effect = effect_of(unpack(index, before), shape_.slots, head_->full, seq, bit, what & kWords, what & kOr);
    if (!effect.accepted) return effect;
    // Right if the exchange succeeds, and otherwise overwritten before it does.
    const uint32_t earlier = static_cast<uint32_t>(__builtin_popcount(effect.after.seen)) - 1;
    slot.brought[worker].store(static_cast<uint8_t>(what | earlier), std::memory_order_relaxed);
    if (slot.state.compare_exchange_weak(before, pack(effect.after), std::memory_order_acq_rel, std::memory_order_acquire))
      return effect;
  }
}

// Combines the words that workers of `seen` have brought. Returns the one worker that has any, kNobody, or kSum, which alone
// is written to `to`, but with `copy_one` also the first. Words that are in no record are `elsewhere`; null: they are left out.
uint32_t SharedSlots::combine(uint32_t index, uint32_t seen, uint8_t* to, uint32_t used, bool copy_one, const uint8_t* elsewhere) const {
  const Slot& slot = slots_[index];
  const uint8_t* from[wire::kMaxWorkers];
  uint8_t brought[wire::kMaxWorkers];
  uint32_t count = 0, last = kNobody;
  uint8_t ops = 0, first_op = 0;
  for (uint32_t worker = 0; worker < shape_.workers; ++worker) {
    if (!(seen & head_->seats[worker].bit)) continue;
    const uint8_t what = slot.brought[worker].load(std::memory_order_relaxed);
    if (!(what & kWords) || (what & kElsewhere && !elsewhere)) continue;
    if (count == 0) first_op = what;
    ops |= static_cast<uint8_t>((what ^ first_op) & kOr);
    brought[count] = what;
    from[count++] = what & kElsewhere ? elsewhere : record(worker, index) + wire::kHeaderBytes;
    last = worker;
  }
  if (count == 0) return kNobody;
  const SlotKernels& kernels = slot_kernels();
  if (count == 1) {
    if (copy_one) kernels.copy(to, from[0], used);
    return elsewhere ? kSum : last;
  }
  if (!ops) {
    (first_op & kOr ? kernels.or_all : kernels.add_all)(to, from, count, used);
    return kSum;
  }
  // Different operations, which a worker that follows the protocol does not send: in the order of arrival.
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t next = i;
    for (uint32_t j = i + 1; j < count; ++j)
      if ((brought[j] & kBefore) < (brought[next] & kBefore)) next = j;
    std::swap(brought[i], brought[next]);
    std::swap(from[i], from[next]);
    const auto kernel = i == 0 ? kernels.copy : brought[i] & kOr ? kernels.or_words : kernels.add;
    kernel(to, from[i], used);
  }
  return kSum;
}

bool SharedSlots::finish(uint32_t seq, uint32_t used) {
  const uint32_t index = seq & mask_;
  Slot& slot = slots_[index];
  if (!full_round(slot, seq)) return false;
  uint32_t claimed = slot.claimed.load(std::memory_order_relaxed);
  if (claimed == seq || !slot.claimed.compare_exchange_strong(claimed, seq, std::memory_order_acquire))
    return done(seq);
  add_up(seq, nullptr, used);
  return true;
}

// Claimed before this worker's bit makes the round full, so that nobody else adds it up.
Effect SharedSlots::complete(uint32_t worker, uint32_t seq, const uint8_t* words, uint32_t used) {
  slots_[seq & mask_].claimed.store(seq, std::memory_order_relaxed);
  const Effect effect = bring(worker, seq, kWords | kElsewhere);
  add_up(seq, words, used);
  return effect;
}

void SharedSlots::restore(uint32_t worker, uint32_t seq) const {
  const uint32_t index = seq & mask_;
  const Slot& slot = slots_[index];
  if (!done(seq) || !(slot.brought[worker].load(std::memory_order_relaxed) & kElsewhere)) return;
  const uint8_t* const sum = result_record(index) + wire::kHeaderBytes;
  uint8_t* const to = record(worker, index) + wire::kHeaderBytes;
  std::memset(to, 0, size_t{4} * shape_.words);
  for (size_t at = 0; at < size_t{4} * std::min(slot.used, shape_.words); at += 4) {
    uint32_t word = wire::load32(sum + at);
    for (uint32_t other = 0; other < shape_.workers; ++other)
      if (other != worker && slot.brought[other].load(std::memory_order_relaxed) & kWords)
        word -= wire::load32(record(other, index) + wire::kHeaderBytes + at);
    wire::store32(to + at, word);
  }
}

// By the one that has claimed it.
void SharedSlots::add_up(uint32_t seq, const uint8_t* elsewhere, uint32_t used) {
  const uint32_t index = seq & mask_;
  Slot& slot = slots_[index];
  uint8_t* const record = result_record(index);
  used = std::min(used, shape_.words);
  slot.words_of = combine(index, head_->full, record + wire::kHeaderBytes, used, elsewhere != nullptr, elsewhere);
  slot.used = used;
  Header header;
  header.op = static_cast<uint8_t>(wire::Op::RESULT);
  header.flags = slot.words_of == kNobody ? 0 : wire::kFlagPayload;
  header.job = head_->job;
  header.token = head_->result_token;
  header.seq = seq;
  header.slot = static_cast<uint16_t>(head_->base + index);
  header.write(record);
  slot.done.store(seq, std::memory_order_release);
}

SharedSlots::Words SharedSlots::result(uint32_t seq) const {
  const uint32_t index = seq & mask_, words_of = slots_[index].words_of;
  const uint8_t* const record = result_record(index);
  if (words_of == kNobody) return {record, nullptr};
  // Another process may have written anything here.
  return {record, (words_of < shape_.workers ? this->record(words_of, index) : record) + wire::kHeaderBytes};
}

const uint8_t* SharedSlots::record_of_result(uint32_t seq) const {
  const Words words = result(seq);
  uint8_t* const record = result_record(seq & mask_);
  if (words.words && words.words != record + wire::kHeaderBytes)
    copy_words(record + wire::kHeaderBytes, words.words, shape_.words);
  return record;
}

void SharedSlots::view(uint32_t index, uint8_t* words) const {
  const SlotRound now = round(index);
  const Words sum = done(now.seq) ? result(now.seq) : Words{};
  std::memset(words, 0, size_t{4} * shape_.words);
  if (sum.words)
    copy_words(words, sum.words, std::min(slots_[index].used, shape_.words));
  else
    static_cast<void>(combine(index, now.seen, words, shape_.words, true, nullptr));
}

void SharedSlots::count(uint32_t worker, const Effect& effect, bool retransmission) {
  Counts& counts = head_->seats[worker].counts;
  add(counts.packets);
  if (retransmission) add(counts.retransmissions);
  add(counts.outcomes[static_cast<size_t>(effect.outcome) + (effect.completing ? kCompleting : 0)]);
}

void SharedSlots::note_core(uint32_t worker, int core) const {
  std::atomic<uint32_t>& noted = head_->seats[worker].core;
  const uint32_t now = static_cast<uint32_t>(core) + 1;
  if (noted.load(std::memory_order_relaxed) != now) noted.store(now, std::memory_order_relaxed);
}

bool SharedSlots::others_work(uint32_t worker) const {
  const Seat& own = head_->seats[worker];
  const uint32_t core = own.core.load(std::memory_order_relaxed);
  return std::any_of(head_->seats.begin(), head_->seats.begin() + shape_.workers, [&](const Seat& seat) {
    return &seat != &own && seat.core.load(std::memory_order_relaxed) == core &&
           !(seat.asleep.load(std::memory_order_relaxed) | seat.polls.load(std::memory_order_relaxed));
  });
}

int SharedSlots::emptier(int core, std::span<const int> cores) const {
  if (core < 0 || static_cast<size_t>(core) >= kCores) return -1;
  std::array<uint8_t, kCores> workers{};
  uint32_t awake = 0;
  for (uint32_t i = 0; i < shape_.workers; ++i) {
    const Seat& seat = head_->seats[i];
    const uint32_t at = seat.core.load(std::memory_order_relaxed) - 1;
    if (at < kCores) ++workers[at];
    if (at == static_cast<uint32_t>(core) && seat.asleep.load(std::memory_order_relaxed) == 0) ++awake;
  }
  if (awake < 2) return -1;
  uint32_t least = awake - 1;
  int found = -1;
  const auto behind = std::upper_bound(cores.begin(), cores.end(), core);
  const auto look = [&](int other) {
    if (static_cast<size_t>(other) >= kCores || workers[other] >= least) return;
    found = other;
    least = workers[other];
  };
  std::for_each(behind, cores.end(), look);
  std::for_each(cores.begin(), behind, look);
  return found;
}

uint32_t SharedSlots::wake_all() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  uint32_t woken = 0;
  for (uint32_t worker = 0; worker < shape_.workers; ++worker) {
    Seat& seat = head_->seats[worker];
    if (seat.asleep.load(std::memory_order_relaxed) == 0 || seat.asleep.exchange(0, std::memory_order_relaxed) == 0) continue;
    wake(seat.wake_ups);
    ++woken;
  }
  return woken;
}

void SharedSlots::wake(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void SharedSlots::sleep(std::atomic<uint32_t>& word, uint32_t value, int64_t timeout_ns) {
  const timespec limit = timespec_of(timeout_ns);
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

}  // namespace switchagg
