#include "switchagg/native/switch/shards.h"

#include <stdexcept>

namespace switchagg {

Shards::Shards(uint32_t capacity, uint32_t threads) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; accepted: 1.." + std::to_string(kMaxThreads));
  for (uint32_t i = 0; i < threads; ++i) loops_.push_back(std::make_unique<SwitchLoop>(capacity, Shard{i, threads}));
  const auto queue = [this]() -> StrayQueue& { return *queues_.emplace_back(std::make_unique<StrayQueue>()); };
  for (uint32_t i = 0; i < threads; ++i) {
    for (uint32_t j = 0; j < i; ++j) {
      StrayQueue &up = queue(), &down = queue();
      loops_[i]->join(*loops_[j], down, up);
      loops_[j]->join(*loops_[i], up, down);
    }
  }
}

void Shards::start(std::span<Port* const> ports) {
  // A loop may wake another as soon as it runs.
  for (size_t i = 0; i < loops_.size(); ++i) loops_[i]->use(*ports[i]);
  for (size_t i = 0; i < loops_.size(); ++i) loops_[i]->start(*ports[i]);
}

void Shards::stop() {
  for (const auto& loop : loops_) loop->stop();
}

void Shards::add_job(const JobAdmission& job) {
  std::lock_guard guard(jobs_);
  size_t added = 0;
  try {
    for (; added < loops_.size(); ++added) loops_[added]->with_table([&](SlotTable& table) { table.add_job(job); });
  } catch (...) {
    while (added > 0) loops_[--added]->with_table([&](SlotTable& table) { table.remove_job(job.job); });
    throw;
  }
}

void Shards::remove_job(uint16_t job) {
  on_all([=](SlotTable& table) { table.remove_job(job); });
}

void Shards::fence(uint16_t job, uint32_t bits) {
  on_all([=](SlotTable& table) { table.fence(job, bits); });
}

void Shards::admit(uint16_t job, uint32_t bits) {
  on_all([=](SlotTable& table) { table.admit(job, bits); });
}

Counters Shards::counters() {
  Counters total{};
  on_all([&](const SlotTable& table) { add_counters(total, table.counters()); });
  return total;
}

Counters Shards::unknown_job_counters() {
  Counters total{};
  on_all([&](const SlotTable& table) { add_counters(total, table.unknown_job_counters()); });
  return total;
}

JobReport Shards::report(uint16_t job) {
  std::lock_guard guard(jobs_);
  const auto of = [job](const SlotTable& table) { return table.report(job); };
  JobReport total = loops_[0]->with_table(of);
  for (size_t i = 1; i < loops_.size(); ++i) total.add(loops_[i]->with_table(of));
  return total;
}

bool Shards::packet_out(std::span<const uint8_t> packet) {
  Verdict verdict = loops_[0]->packet_out(packet);
  if (verdict.action == Action::stray) verdict = loops_[verdict.shard]->packet_out(packet);
  return verdict.action == Action::to_controller;
}

PortCounters Shards::port_counters() {
  PortCounters total;
  for (const auto& loop : loops_) total += loop->port_counters();
  return total;
}

std::string Shards::failure() {
  for (const auto& loop : loops_)
    if (std::string failure = loop->failure(); !failure.empty()) return failure;
  return {};
}

Shards::Strays Shards::strays() const {
  Strays total;
  for (const auto& queue : queues_) {
    total.packets += queue->packets();
    total.dropped += queue->dropped();
  }
  return total;
}

}  // namespace switchagg
