#include "switchagg/native/switch/slot_table.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>


namespace switchagg {

using wire::DropReason;
using wire::Event;
using wire::Header;
using wire::Op;

const SlotKernels& untouched_slot_kernels() {
  static constexpr WordKernel nothing = [](uint8_t*, const uint8_t*, size_t) {};
  static constexpr WordsKernel nothing_of_all = [](uint8_t*, const uint8_t* const*, size_t, size_t) {};
  static constexpr SlotKernels kernels = {nothing, nothing, nothing, nothing_of_all, nothing_of_all};
  return kernels;
}

namespace {

constexpr uint32_t kMaxCapacity = 1 << 16;
constexpr uint16_t kNoJob = 0xFFFF;  // job indices stay below: a job has at least 2 of at most 65,536 slots

template <typename Index>
void count(Counters& counters, Index what) {
  ++counters[static_cast<size_t>(what)];
}

Verdict dropped(DropReason reason) { return {.reason = reason}; }

Verdict drop(uint64_t& count, DropReason reason) {
  ++count;
  return dropped(reason);
}

Verdict drop(Counters& counters, DropReason reason) {
  count(counters, Event::received);
  count(counters, reason);
  return dropped(reason);
}

// The `reply` of a directed contribution, which names the one worker that needs the words; 0 for others.
uint16_t reader_of(const Header& header) {
  constexpr uint8_t mask = wire::kFlagDirected | wire::kFlagRetransmission;
  return (header.flags & mask) == wire::kFlagDirected ? header.reply : uint16_t{0};
}

Verdict stray(uint32_t shard) { return {.action = Action::stray, .shard = shard}; }

}  // namespace

void add_counters(Counters& to, const Counters& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

void JobReport::add(const JobReport& other) {
  add_counters(counters, other.counters);
  for (size_t i = 0; i < kOutcomes; ++i) job.outcomes[i] += other.job.outcomes[i];
  using J = JobOutcomes;
  for (uint64_t J::* each : {&J::source, &J::length, &J::outside, &J::delivered}) job.*each += other.job.*each;
  using W = WorkerOutcomes;
  for (size_t i = 0; i < workers.size(); ++i)
    for (uint64_t W::* each : {&W::packets, &W::retransmissions, &W::misplaced, &W::outside, &W::token, &W::delivered})
      workers[i].second.*each += other.workers[i].second.*each;
}

struct SlotTable::Job {
  struct Slot : SlotRound {
    uint8_t ecn = 0;             // flags of the round's contributions
    uint32_t pending_epoch = 0;  // pending while this is the table's epoch
  };
  struct Worker {
    Endpoint endpoint;
    uint32_t bit, token;
    bool fenced = false;
    WorkerOutcomes counts{};
  };
  // A hash table of at most 32 workers in 64 places, so that a search always ends at an empty place.
  static constexpr uint32_t kPlaces = 64;
  static constexpr uint8_t kEmpty = 0xFF;

  Job(const JobAdmission& entry, uint32_t index, bool shareable, Shard shard)
      : index(index), id(entry.job), base(entry.base), mask(entry.slots - 1), words(entry.words),
        result_token(entry.result_token), shard(shard), parent(entry.parent), stride(wire::kHeaderBytes + 4 * entry.words),
        kernels(entry.touch ? slot_kernels() : untouched_slot_kernels()),
        shared_slots(entry.shared), slots(places_of(entry, shard)),
        findable(shareable && !entry.shared ? size_t{stride} * slots.size() : 0),
        own(findable.get() || entry.shared ? 0 : size_t{stride} * slots.size()),
        records(findable.get() ? findable.get() : own.get()) {
    places.fill(kEmpty);
    for (const WorkerAdmission& worker : entry.workers)
      workers.push_back({worker.endpoint, uint32_t{1} << worker.bit, worker.token});
    std::sort(workers.begin(), workers.end(), [](const Worker& a, const Worker& b) { return a.bit < b.bit; });
    for (const Worker& worker : workers) {
      uint32_t place = first_place(worker.endpoint);
      while (places[place] != kEmpty) place = (place + 1) % kPlaces;
      places[place] = static_cast<uint8_t>(endpoints.size());
      endpoints.push_back(worker.endpoint);
      full |= worker.bit;
    }
    if (entry.shared && shard.index == 0) share(entry);
  }

  // Slots that a table has room for: those of its own blocks. A job of several blocks has whole ones, since P is a power of
  // two and divides the base.
  static size_t places_of(const JobAdmission& entry, Shard shard) {
    const uint32_t blocks = entry.slots / wire::kBlockSlots;
    return blocks < 2 ? entry.slots : size_t{(blocks + shard.count - 1) / shard.count} * wire::kBlockSlots;
  }
  // The place of a slot of its own.
  uint32_t place(uint32_t slot) const {
    return slot / wire::kBlockSlots / shard.count * wire::kBlockSlots + slot % wire::kBlockSlots;
  }
  uint32_t owner(uint32_t slot) const { return shared_slots ? 0 : shard.of(base + slot); }
  Slot& at(uint32_t slot) { return slots[place(slot)]; }
  const Slot& at(uint32_t slot) const { return slots[place(slot)]; }

  void share(const JobAdmission& entry) {
    const SharedSlots::Shape shape{static_cast<uint32_t>(workers.size()), entry.slots, entry.words};
    memory = SharedMemory::make(shape.bytes(), false);
    shared.emplace(memory->get(), shape);
    std::vector<uint32_t> bits;
    for (const Worker& worker : workers) bits.push_back(worker.bit);
    shared->make(id, base, result_token, bits.data());
    viewed.reset(new uint8_t[size_t{4} * words]);
  }

  static uint32_t first_place(Endpoint source) {
    return ((source.ip * 0x9E3779B1u) ^ (source.port * 0x85EBCA6Bu)) >> 26;  // the top 6 bits
  }

  Worker* find(Endpoint source) {
    if (workers[last].endpoint == source) return &workers[last];  // packets of one worker come in runs
    for (uint32_t place = first_place(source); places[place] != kEmpty; place = (place + 1) % kPlaces) {
      if (workers[places[place]].endpoint == source) {
        last = places[place];
        return &workers[last];
      }
    }
    return nullptr;
  }

  Worker* with_bit(uint32_t bit) {
    const auto found = std::find_if(workers.begin(), workers.end(), [&](const Worker& w) { return w.bit == bit; });
    return found == workers.end() ? nullptr : &*found;
  }

  bool owns(uint32_t slot) const { return slot - base <= mask; }

  SlotRound round(uint32_t slot) const { return shared ? shared->round(slot) : SlotRound(at(slot)); }

  uint8_t* record(uint32_t slot) const { return records + size_t{stride} * place(slot); }

  // `cause` is the packet that made the slot full.
  void write_result(uint32_t slot, const Header& cause) {
    Header header;
    header.op = static_cast<uint8_t>(Op::RESULT);
    header.flags = static_cast<uint8_t>(at(slot).ecn | (at(slot).filled ? wire::kFlagPayload : 0));
    header.job = id;
    header.token = result_token;
    header.seq = at(slot).seq;
    header.slot = static_cast<uint16_t>(base + slot);
    if (parent) {
      header.op = cause.op;
      header.flags |= cause.flags & wire::kFlagRetransmission;
      header.reply = reader_of(cause);
      if (header.reply != 0) header.flags |= wire::kFlagDirected;
      header.token = parent->token;
      header.slot = static_cast<uint16_t>(parent->base + slot);
    }
    header.write(record(slot));
  }

  void count(Outcome outcome, bool completing = false) {
    ++counts.outcomes[static_cast<size_t>(outcome) + (completing ? kCompleting : 0)];
  }

  // Drops a packet whose slot is not that of its sequence number.
  Verdict wrong_slot(uint32_t slot, uint64_t& outside) {
    if (!owns(slot)) return drop(outside, DropReason::slot);
    count(Outcome::misplaced);
    return dropped(DropReason::slot);
  }

  // With what the workers have counted in shared memory.
  JobOutcomes all_counts() const {
    JobOutcomes all = counts;
    for (uint32_t i = 0; shared && i < workers.size(); ++i) {
      const SharedSlots::Counts& own = shared->counts(i);
      for (size_t outcome = 0; outcome < kOutcomes; ++outcome) all.outcomes[outcome] += own.outcomes[outcome];
      all.source += own.fenced;
    }
    return all;
  }
  WorkerOutcomes all_counts(size_t worker) const {
    WorkerOutcomes all = workers[worker].counts;
    if (shared) {
      all.packets += shared->counts(static_cast<uint32_t>(worker)).packets;
      all.retransmissions += shared->counts(static_cast<uint32_t>(worker)).retransmissions;
    }
    return all;
  }
  Counters counters() const;

  const uint32_t index;
  const uint16_t id;
  const uint32_t base, mask, words, result_token;
  const Shard shard;
  const std::optional<ParentAdmission> parent;
  const uint32_t stride;
  const SlotKernels& kernels;
  const bool shared_slots;  // of the first table
  uint32_t full = 0, last = 0;
  std::array<uint8_t, kPlaces> places;
  std::vector<Worker> workers;  // in bit order
  std::vector<Endpoint> endpoints;
  std::vector<Slot> slots;  // by place
  FindableMemory findable;
  PacketMemory own;
  uint8_t* const records;  // in one of the two
  std::optional<SharedMemory> memory;  // or all of it here, for shared slots
  std::optional<SharedSlots> shared;
  std::unique_ptr<uint8_t[]> viewed;  // words of a shared slot that somebody looks at
  JobOutcomes counts;
};

Counters SlotTable::Job::counters() const {
  const JobOutcomes counts = all_counts();
  const auto cell = [&](Outcome outcome) { return counts.outcomes[static_cast<size_t>(outcome)]; };
  const auto completing = [&](Outcome outcome) { return counts.outcomes[static_cast<size_t>(outcome) + kCompleting]; };
  const auto both = [&](Outcome outcome) { return cell(outcome) + completing(outcome); };
  Counters counters{};
  const auto at = [&](auto what) -> uint64_t& { return counters[static_cast<size_t>(what)]; };
  at(DropReason::length) = counts.length;
  at(DropReason::source) = counts.source;
  at(DropReason::slot) = counts.outside + cell(Outcome::misplaced);
  at(DropReason::stale) = cell(Outcome::stale);
  at(DropReason::duplicate) = cell(Outcome::duplicate);
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    const WorkerOutcomes own = all_counts(worker);
    at(DropReason::slot) += own.outside;
    at(DropReason::token) += own.token;
    at(Event::retransmissions) += own.retransmissions;
    at(Event::delivered) += own.delivered;
  }
  at(Event::delivered) += counts.delivered;
  at(Event::fresh) = both(Outcome::fresh_skip) + both(Outcome::fresh_stored);
  at(Event::stored) = both(Outcome::stored) + both(Outcome::fresh_stored);
  at(Event::added) = both(Outcome::added);
  at(Event::ored) = both(Outcome::ored);
  at(Event::skips) = both(Outcome::skip) + both(Outcome::empty_skip) + both(Outcome::fresh_skip);
  at(Event::accepted) = at(Event::stored) + at(Event::added) + at(Event::ored) + at(Event::skips);
  at(Event::duplicates_answered) = cell(Outcome::answered);
  for (Outcome outcome : {Outcome::skip, Outcome::empty_skip, Outcome::stored, Outcome::added, Outcome::ored,
                          Outcome::fresh_skip, Outcome::fresh_stored})
    at(Event::results) += completing(outcome);
  at(Event::empty_results) = completing(Outcome::empty_skip) + completing(Outcome::fresh_skip);
  at(Event::inits) = cell(Outcome::initialised);
  at(Event::received) =
      at(Event::accepted) + at(Event::duplicates_answered) + at(Event::inits) + at(Event::delivered);
  for (DropReason reason : {DropReason::length, DropReason::source, DropReason::token, DropReason::slot,
                            DropReason::stale, DropReason::duplicate})
    at(Event::received) += at(reason);
  return counters;
}

SlotTable::SlotTable(uint32_t capacity, Shard shard)
    : capacity_(capacity), shard_(shard), index_of_job_(size_t{1} << 16, kNoJob) {
  if (capacity < 1 || capacity > kMaxCapacity)
    throw std::invalid_argument("capacity is " + std::to_string(capacity) + "; accepted: 1..65536");
}

SlotTable::~SlotTable() = default;

void SlotTable::add_job(const JobAdmission& entry) {
  if (find(entry.job)) throw std::invalid_argument("job " + std::to_string(entry.job) + " is already in the table");
  const uint32_t end = entry.base + entry.slots;
  if (end > capacity_)
    throw std::invalid_argument("slots " + std::to_string(entry.base) + ".." + std::to_string(end - 1) +
                                " are outside the switch's " + std::to_string(capacity_));
  for (const auto& other : jobs_) {
    if (other && entry.base <= other->base + other->mask && other->base < end)
      throw std::invalid_argument("slots " + std::to_string(entry.base) + ".." + std::to_string(end - 1) +
                                  " overlap those of job " + std::to_string(other->id));
  }
  size_t index = 0;
  while (index < jobs_.size() && jobs_[index]) ++index;
  if (index == jobs_.size()) jobs_.emplace_back();
  jobs_[index] = std::make_unique<Job>(entry, static_cast<uint32_t>(index), shareable_, shard_);
  index_of_job_[entry.job] = static_cast<uint16_t>(index);
}

void SlotTable::remove_job(uint16_t id) {
  Job& job = get(id);
  add_counters(removed_, job.counters());
  index_of_job_[id] = kNoJob;
  jobs_[job.index].reset();
}

void SlotTable::set_fenced(uint16_t id, uint32_t bits, bool fenced) {
  Job& job = get(id);
  if (bits & ~job.full) {
    char text[80];
    std::snprintf(text, sizeof text, "bits is 0x%x; the workers of job %u have 0x%x", bits, id, job.full);
    throw std::invalid_argument(text);
  }
  for (Job::Worker& worker : job.workers)
    if (bits & worker.bit) worker.fenced = fenced;
  if (!job.shared) return;
  uint32_t all = 0;
  for (const Job::Worker& worker : job.workers) all |= worker.fenced ? worker.bit : 0;
  job.shared->fence(all);
}

bool SlotTable::admits(uint16_t id, Endpoint source, uint32_t token) const {
  Job* job = find(id);
  const Job::Worker* worker = job ? job->find(source) : nullptr;
  return worker && !worker->fenced && worker->token == token;
}

std::optional<SharedSlotsOffer> SlotTable::offer(uint16_t id, Endpoint source, uint32_t token) const {
  if (!admits(id, source, token) || !find(id)->shared) return std::nullopt;
  Job& job = *find(id);
  Descriptor memory(fcntl(job.memory->descriptor(), F_DUPFD_CLOEXEC, 0));
  if (!memory) return std::nullopt;
  return SharedSlotsOffer{std::move(memory), job.shared->shape(), static_cast<uint32_t>(job.find(source) - job.workers.data())};
}

SlotTable::Job* SlotTable::find(uint16_t id) const {
  const uint16_t index = index_of_job_[id];
  return index == kNoJob ? nullptr : jobs_[index].get();
}

SlotTable::Job& SlotTable::get(uint16_t id) const {
  if (Job* job = find(id)) return *job;
  throw std::invalid_argument("there is no job " + std::to_string(id) + " in the table");
}

Verdict SlotTable::process(const Received& packet, bool from_controller) {
  const uint32_t size = packet.size;
  if (size < wire::kHeaderBytes) return drop(unattributed_, DropReason::truncated);
  const Header header = Header::parse(packet.header);
  if (header.version != wire::kVersion) return drop(unattributed_, DropReason::version);
  const Op op = static_cast<Op>(header.op);
  if (op == Op::RESULT && !from_controller) return deliver(header, size - wire::kHeaderBytes, packet.peer);
  if (from_controller ? op != Op::INIT : op != Op::SUM && op != Op::OR) return drop(unattributed_, DropReason::op);
  const uint32_t payload = size - wire::kHeaderBytes;
  const bool filled = header.flags & wire::kFlagPayload;
  if (filled ? payload % 4 || payload < 4 * wire::kMinWords || op == Op::INIT : payload != 0)
    return drop(unattributed_, DropReason::length);
  Job* job = find(header.job);
  if (!job) return drop(unattributed_, DropReason::job);
  if (from_controller) return initialise(*job, header);
  if (filled && payload != 4 * job->words) return drop(job->counts.length, DropReason::length);
  return contribute(*job, header, filled ? packet.words : nullptr, packet.peer);
}

Verdict SlotTable::contribute(Job& job, const Header& header, const uint8_t* words, Endpoint source) {
  Job::Worker* worker = job.find(source);
  if (!worker || worker->fenced) return drop(job.counts.source, DropReason::source);
  if (worker->token != header.token) return drop(worker->counts.token, DropReason::token);
  const uint32_t index = header.seq & job.mask;
  if (header.slot != job.base + index) {
    if (job.owns(header.slot)) ++worker->counts.misplaced;
    return job.wrong_slot(header.slot, worker->counts.outside);
  }
  if (const uint32_t owner = job.owner(index); owner != shard_.index) return stray(owner);

  Job::Slot& slot = job.at(index);
  Verdict verdict{.job_index = job.index, .slot = index};
  const SlotRound round = job.round(index);
  if (header.seq == round.seq + job.mask + 1 && slot.pending_epoch == epoch_) {
    verdict.action = Action::flush;
    return verdict;
  }
  ++worker->counts.packets;
  if (header.flags & wire::kFlagRetransmission) ++worker->counts.retransmissions;
  const bool is_or = header.op != static_cast<uint8_t>(Op::SUM);
  const Effect effect =
      job.shared ? contribute_shared(job, static_cast<uint32_t>(worker - job.workers.data()), header, words)
                 : effect_of(round, job.mask + 1, job.full, header.seq, worker->bit, words, is_or);
  job.count(effect.outcome, effect.completing);
  if (effect.outcome == Outcome::stale) return dropped(DropReason::stale);
  if (effect.outcome == Outcome::duplicate) return dropped(DropReason::duplicate);
  if (effect.outcome == Outcome::answered) {
    slot.pending_epoch = epoch_;
    verdict.action = Action::unicast;
    verdict.to = source;
    verdict.reply = header.reply;
    verdict.flags = header.flags;
    if (job.parent) {
      verdict.to = job.parent->endpoint;
      verdict.reply = static_cast<uint16_t>(__builtin_ctz(worker->bit) + 1);
      verdict.op = header.op;
    }
    return verdict;
  }
  if (!job.shared) {
    uint8_t* const stored = job.record(index) + wire::kHeaderBytes;
    if (effect.outcome == Outcome::stored || effect.outcome == Outcome::fresh_stored) job.kernels.copy(stored, words, job.words);
    if (effect.outcome == Outcome::added) job.kernels.add(stored, words, job.words);
    if (effect.outcome == Outcome::ored) job.kernels.or_words(stored, words, job.words);
    const uint8_t before = header.seq == round.seq ? slot.ecn : uint8_t{0};
    slot.ecn = static_cast<uint8_t>(before | (header.flags & kEcnFlags));
    static_cast<SlotRound&>(slot) = effect.after;
    if (effect.completing) job.write_result(index, header);
  }
  if (effect.completing && (!job.shared || job.shared->done(header.seq))) {
    slot.pending_epoch = epoch_;
    verdict.action = Action::multicast;
    if (!job.parent && effect.after.filled) verdict.reader = reader_of(header);
  }
  return verdict;
}

// A packet that came here in spite of the shared memory.
Effect SlotTable::contribute_shared(Job& job, uint32_t worker, const Header& header, const uint8_t* words) {
  SharedSlots& shared = *job.shared;
  const bool is_or = header.op != static_cast<uint8_t>(Op::SUM);
  const uint32_t index = header.seq & job.mask;
  const SlotRound round = shared.round(index);
  // Other contributions of this worker may still be read.
  if (words && effect_of(round, job.mask + 1, job.full, header.seq, job.workers[worker].bit, words, is_or).accepted)
    job.kernels.copy(shared.record(worker, index) + wire::kHeaderBytes, words, job.words);
  Effect effect = shared.contribute(worker, header.seq, words, is_or);
  if (effect.completing || effect.outcome == Outcome::answered) {
    // Unless a worker adds it up: then this one is told when it asks again.
    if (shared.finish(header.seq, job.words)) {
      static_cast<void>(shared.record_of_result(header.seq));
      shared.wake_all();
    } else if (!effect.completing) {
      effect.outcome = Outcome::duplicate;
    }
  }
  return effect;
}

// A RESULT of the parent goes down to one worker or to all; nobody else may send one.
Verdict SlotTable::deliver(const Header& header, uint32_t payload, Endpoint source) {
  Job* const job = find(header.job);
  const bool filled = header.flags & wire::kFlagPayload;
  if (!job || !job->parent || source != job->parent->endpoint || header.token != job->parent->result_token ||
      header.slot - job->parent->base > job->mask || payload != (filled ? 4 * job->words : 0))
    return drop(unattributed_, DropReason::op);
  Verdict verdict{.action = Action::deliver, .job_index = job->index, .slot = header.slot - job->parent->base,
                  .reply = header.reply};
  if (header.reply == 0) {
    ++job->counts.delivered;
    return verdict;
  }
  Job::Worker* const worker =
      header.reply <= wire::kMaxWorkers ? job->with_bit(uint32_t{1} << (header.reply - 1)) : nullptr;
  if (!worker) return drop(unattributed_, DropReason::op);
  ++worker->counts.delivered;
  verdict.to = worker->endpoint;
  return verdict;
}

Verdict SlotTable::initialise(Job& job, const Header& header) {
  const uint32_t index = header.seq & job.mask;
  if (header.slot != job.base + index) return job.wrong_slot(header.slot, job.counts.outside);
  if (const uint32_t owner = job.owner(index); owner != shard_.index) return stray(owner);
  Job::Slot& slot = job.at(index);
  Verdict verdict{.job_index = job.index, .slot = index};
  if (slot.pending_epoch == epoch_) {
    verdict.action = Action::flush;
    return verdict;
  }
  if (job.shared) {
    job.shared->initialise(header.seq);
  } else {
    static_cast<SlotRound&>(slot) = {header.seq, job.full, false};
    slot.ecn = 0;
    Header cause;
    cause.op = static_cast<uint8_t>(Op::SUM);
    job.write_result(index, cause);
  }
  job.count(Outcome::initialised);
  verdict.action = Action::to_controller;
  return verdict;
}

Segment SlotTable::result(uint32_t job_index, uint32_t slot) const {
  const Job& job = *jobs_[job_index];
  const uint8_t* const record = job.shared ? job.shared->record_of_result(slot) : job.record(slot);
  return {record, record[wire::kFlagsOffset] & wire::kFlagPayload ? job.stride : wire::kHeaderBytes};
}

std::span<const Endpoint> SlotTable::workers(uint32_t job_index) const { return jobs_[job_index]->endpoints; }

std::span<const Endpoint> SlotTable::audience(uint32_t job_index) const {
  const Job& job = *jobs_[job_index];
  if (job.parent) return {&job.parent->endpoint, 1};
  return job.endpoints;
}

Segment SlotTable::result_with_reply(const Verdict& verdict, uint8_t* scratch) const {
  const Segment stored = result(verdict.job_index, verdict.slot);
  std::memcpy(scratch, stored.data, stored.size);
  if (jobs_[verdict.job_index]->parent) {
    Header header = Header::parse(scratch);
    header.op = verdict.op;
    header.flags =
        static_cast<uint8_t>((header.flags & (wire::kFlagPayload | kEcnFlags)) | (verdict.flags & wire::kFlagRetransmission));
    header.write(scratch);
  }
  scratch[wire::kFlagsOffset] |= verdict.flags & kEcnFlags;
  wire::store16(scratch + wire::kReplyOffset, verdict.reply);
  return {scratch, stored.size};
}

void SlotTable::bare(uint32_t job_index, uint32_t slot, uint8_t* to) const {
  std::memcpy(to, result(job_index, slot).data, wire::kHeaderBytes);
  to[wire::kFlagsOffset] = static_cast<uint8_t>(wire::kFlagDirected | (to[wire::kFlagsOffset] & kEcnFlags));
}

std::optional<Endpoint> SlotTable::worker(uint32_t job_index, uint32_t bit) const {
  if (bit >= wire::kMaxWorkers) return std::nullopt;
  const Job::Worker* const found = jobs_[job_index]->with_bit(uint32_t{1} << bit);
  return found ? std::optional(found->endpoint) : std::nullopt;
}

Segment SlotTable::delivered(const Verdict& verdict, const Received& packet, uint8_t* scratch) const {
  const Job& job = *jobs_[verdict.job_index];
  packet.copy_to(scratch);
  Header header = Header::parse(scratch);
  header.flags &= wire::kFlagPayload | wire::kFlagDirected | kEcnFlags;
  header.token = job.result_token;
  header.slot = static_cast<uint16_t>(job.base + verdict.slot);
  header.reply = 0;
  header.write(scratch);
  return {scratch, packet.size};
}

Counters SlotTable::counters() const {
  Counters total = unattributed_;
  add_counters(total, removed_);
  for (const auto& job : jobs_)
    if (job) add_counters(total, job->counters());
  return total;
}

JobReport SlotTable::report(uint16_t id) const {
  const Job& job = get(id);
  JobReport report{job.counters(), job.all_counts(), {}};
  for (size_t i = 0; i < job.workers.size(); ++i)
    report.workers.emplace_back(static_cast<uint32_t>(__builtin_ctz(job.workers[i].bit)), job.all_counts(i));
  return report;
}

const SlotTable::Job& SlotTable::job_of_slot(uint32_t index) const {
  for (const auto& job : jobs_)
    if (job && index >= job->base && index <= job->base + job->mask) return *job;
  throw std::invalid_argument("slot " + std::to_string(index) + " belongs to no job");
}

SlotTable::SlotView SlotTable::slot(uint32_t index) const {
  const Job& job = job_of_slot(index);
  const SlotRound slot = job.round(index - job.base);
  if (job.shared) job.shared->view(index - job.base, job.viewed.get());
  const uint8_t* words = job.shared ? job.viewed.get() : job.record(index - job.base) + wire::kHeaderBytes;
  return {slot.seq, slot.seen, slot.filled, {words, slot.filled ? 4 * job.words : 0}};
}

uint32_t SlotTable::owner(uint32_t index) const {
  const Job& job = job_of_slot(index);
  return job.owner(index - job.base);
}

}  // namespace switchagg
