#include "switchagg/native/switch/loop.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <tuple>
#include <utility>

#include "switchagg/native/shared/thread.h"

namespace switchagg {

constexpr size_t kScratchBytes = 16 * size_t{wire::kMaxPacketBytes};

SwitchLoop::SwitchLoop(uint32_t capacity, Shard shard)
    : table_(capacity, shard), others_(shard.count > 1 ? shard.count : 0), scratch_(new uint8_t[kScratchBytes]) {}

void SwitchLoop::join(SwitchLoop& other, StrayQueue& to, StrayQueue& from) {
  others_[other.table_.shard().index] = {&other, &to, &from};
}

void SwitchLoop::start(Port& port) {
  port_ = &port;
  process_ = getpid();
  thread_ = start_thread([this] { serve(); });
}

void SwitchLoop::stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  port_->wake();
  thread_.join();
}

bool SwitchLoop::in_own_process() const { return process_ == 0 || process_ == getpid(); }

Verdict SwitchLoop::packet_out(std::span<const uint8_t> packet) {
  std::lock_guard<FairMutex> guard(lock_);
  return table_.process(Received::whole(packet.data(), static_cast<uint32_t>(packet.size()), {}), true);
}

PortCounters SwitchLoop::port_counters() {
  std::lock_guard<FairMutex> guard(lock_);
  return port_counters_;
}

std::string SwitchLoop::failure() {
  std::lock_guard<FairMutex> guard(lock_);
  return failure_;
}

void SwitchLoop::serve() {
  try {
    while (!stopping_.load(std::memory_order_relaxed)) {
      port_->wait(-1);
      turn(*port_);
    }
  } catch (const std::exception& error) {
    {
      std::lock_guard<FairMutex> guard(lock_);
      failure_ = error.what();
    }
    // A switch without some of its slots is of no use to anybody.
    for (const Other& other : others_) {
      if (!other.loop) continue;
      other.loop->stopping_ = true;
      other.loop->port_->wake();
    }
  }
}

void SwitchLoop::turn(Port& port) {
  if (port_ != &port) port_ = &port;  // the thread writes nothing that stop() reads
  arrived_.clear();
  port.receive(arrived_);
  for (const Other& other : others_)
    if (other.from) other.from->take(arrived_);
  {
    std::lock_guard<FairMutex> guard(lock_);
    for (const Received& datagram : arrived_) on_packet(datagram);
    flush();
    port_counters_ = port.counters();
  }
  if (!strays_.empty()) hand_over();
}

void SwitchLoop::hand_over() {
  for (const auto& [index, datagram] : strays_) {
    others_[index].to->put(datagram);
    others_[index].handed = true;
  }
  strays_.clear();
  for (Other& other : others_)
    if (std::exchange(other.handed, false)) other.loop->port_->wake();
}

void SwitchLoop::on_packet(const Received& datagram) {
  Verdict verdict = table_.process(datagram, false);
  if (verdict.action == Action::flush) {
    flush();
    verdict = table_.process(datagram, false);
  }
  if (verdict.action == Action::multicast) {
    if (verdict.reader != 0) {
      direct(verdict);
    } else {
      finished(verdict.job_index).full.add(table_.result(verdict.job_index, verdict.slot));
    }
  }
  if (verdict.action == Action::unicast) answer(verdict);
  if (verdict.action == Action::deliver) deliver(verdict, datagram);
  if (verdict.action == Action::stray) strays_.emplace_back(verdict.shard, datagram);
}

// Returns where to put more that is to be sent of a job. Notes the job if this batch has nothing of it yet.
SwitchLoop::Finished& SwitchLoop::finished(uint32_t job_index) {
  if (job_index >= finished_.size()) finished_.resize(job_index + 1);
  Finished& job = finished_[job_index];
  if (job.empty()) to_multicast_.push_back(job_index);
  return job;
}

void SwitchLoop::direct(const Verdict& verdict) {
  table_.bare(verdict.job_index, verdict.slot, bare_.emplace_back().data());
  finished(verdict.job_index)
      .directed.push_back({verdict.reader, table_.result(verdict.job_index, verdict.slot), bare_.size() - 1});
}

// Neighbours mostly have one reader, since they carry neighbouring elements.
void SwitchLoop::send_directed(uint32_t job_index, std::vector<Directed>& directed) {
  const std::span<const Endpoint> workers = table_.workers(job_index);
  for (size_t at = 0, end; at < directed.size(); at = end) {
    const uint16_t reader = directed[at].reader;
    for (end = at; end < directed.size() && directed[end].reader == reader;) ++end;
    const std::optional<Endpoint> to = table_.worker(job_index, reader - 1u);
    run_.clear();
    for (size_t i = at; to && i < end; ++i) run_.push_back(directed[i].result);
    if (to) port_->send({&*to, 1}, run_);
    run_.clear();
    for (size_t i = at; i < end; ++i) run_.push_back({bare_[directed[i].bare].data(), wire::kHeaderBytes});
    bare_to_.assign(workers.begin(), workers.end());
    if (to) std::erase(bare_to_, *to);
    port_->send(bare_to_, run_);
  }
  directed.clear();
}

// Memory for one more packet. May flush, which is safe: no packet is processed in between.
uint8_t* SwitchLoop::scratch() {
  if (kScratchBytes - scratch_used_ < wire::kMaxPacketBytes) flush();
  return scratch_.get() + scratch_used_;
}

void SwitchLoop::deliver(const Verdict& verdict, const Received& datagram) {
  const Segment result = table_.delivered(verdict, datagram, scratch());
  scratch_used_ += result.size;
  if (verdict.reply != 0) return answers_.push_back({verdict.to, result});
  finished(verdict.job_index).delivered.add(result);
}

void SwitchLoop::answer(const Verdict& verdict) {
  if (verdict.as_stored()) return answers_.push_back({verdict.to, table_.result(verdict.job_index, verdict.slot)});
  const Segment result = table_.result_with_reply(verdict, scratch());
  scratch_used_ += result.size;
  answers_.push_back({verdict.to, result});
}

void SwitchLoop::flush() {
  for (const uint32_t index : to_multicast_) {
    Finished& job = finished_[index];
    const auto send = [this](std::span<const Endpoint> to, Train& train) {
      if (train.empty()) return;
      train.with_words.insert(train.with_words.end(), train.without.begin(), train.without.end());
      port_->send(to, train.with_words);
      train.with_words.clear();
      train.without.clear();
    };
    send(table_.audience(index), job.full);
    send_directed(index, job.directed);
    send(table_.workers(index), job.delivered);
  }
  to_multicast_.clear();
  bare_.clear();

  if (!answers_.empty()) {
    // By worker, size and address, so that neighbours merge into trains.
    const auto key = [](const Answer& r) { return std::tuple(r.to.ip, r.to.port, ~r.result.size, r.result.data); };
    std::sort(answers_.begin(), answers_.end(), [&](const Answer& a, const Answer& b) { return key(a) < key(b); });
    for (size_t at = 0; at < answers_.size();) {
      const Endpoint to = answers_[at].to;
      run_.clear();
      for (; at < answers_.size() && answers_[at].to == to; ++at) run_.push_back(answers_[at].result);
      port_->send({&to, 1}, run_);
    }
    answers_.clear();
  }
  scratch_used_ = 0;
  table_.flushed();
}

}  // namespace switchagg
