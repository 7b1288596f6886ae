// Draws schedules, and makes those that fail smaller.
#include <algorithm>
#include <cmath>

#include "tests/native/simulation/schedule.h"

namespace simulation {
namespace {

CallShape draw_call(Random& random, uint32_t workers) {
  CallShape call;
  call.data = random.next();
  call.root = static_cast<uint8_t>(random.below(workers));
  const uint32_t which = random.below(24);
  if (which == 0) {
    call.kind = Kind::barrier;
    call.dtype = DType::raw;
    call.op = ReduceOp::bit_or;
    return call;
  }
  call.count = random.chance(0.1) ? 1 + random.below(8) : 100 + random.below(600);
  if (which == 1) {
    call.kind = Kind::broadcast;
    call.dtype = DType::raw;
    call.op = ReduceOp::bit_or;
    return call;
  }
  constexpr DType kTypes[] = {DType::i32, DType::i64, DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16};
  call.dtype = random.one_of(kTypes);
  constexpr uint8_t kWidths[] = {kBounded, kBounded, kExact, 32, 16, 8};
  call.bits = call.dtype <= DType::bf16 ? random.one_of(kWidths) : call.dtype == DType::i32 ? 32 : 64;
  if (call.dtype <= DType::bf16 && random.chance(0.2)) call.op = ReduceOp::avg;
  call.sparse = random.chance(0.5);
  call.block = 1 + random.below(random.chance(0.5) ? 16 : 128);
  call.in_place = random.chance(0.3);
  return call;
}

int64_t draw_time(Random& random, double least, double most) {  // equally often in each order of magnitude
  return static_cast<int64_t>(least * std::pow(most / least, unit(random.next())));
}

}  // namespace

Scenario draw(uint64_t seed) {
  Random random(seed);
  Scenario s;
  s.seed = seed;
  s.leaves = random.chance(0.3) ? 1 + random.below(3) : 0;
  const uint32_t jobs = random.chance(0.25) ? 2 : 1;
  uint32_t hosts = s.switches();
  std::vector<uint32_t> free(s.switches());  // the first slot of each switch that no job has
  for (uint32_t j = 0; j < jobs; ++j) {
    JobShape job;
    job.id = static_cast<uint16_t>(1 + j);
    job.workers = std::max(s.leaves, random.chance(0.1) ? 2 + random.below(15) : 2 + random.below(4));
    job.slots = 2u << random.below(random.chance(0.5) ? 3 : 6);
    job.words = 16 + random.below(49);
    job.first_seq = random.chance(0.5) ? 0u - random.below(200) : static_cast<uint32_t>(random.next());
    job.depth = 1 + random.below(4);
    job.think = random.chance(0.5) ? random.between(0, 300 * kMicrosecond) : 0;
    job.first_host = hosts;
    hosts += job.workers;
    for (uint32_t& next : free) {
      next += random.below(3);
      job.base.push_back(next);
      next += job.slots;
    }
    const uint32_t calls = 2 + random.below(3);
    for (uint32_t c = 0; c < calls; ++c) job.calls.push_back(draw_call(random, job.workers));
    job.times = random.chance(0.4) ? 2 : 1;
    s.jobs.push_back(std::move(job));
  }

  Conditions& c = s.conditions;
  c.delay = draw_time(random, 1e3, 200e3);
  c.jitter = random.chance(0.5) ? random.between(0, c.delay) : 0;
  c.latency = draw_time(random, 200, 30e3);
  const volatile double ten = 10;  // of pow(10.0, x) some compilers make exp10(x), which may have another last bit
  c.ns_per_byte = std::pow(ten, 1 - 2 * unit(random.next()));  // 0.8 to 80 Gbit/s
  c.queue = draw_time(random, 2e3, 1e6);
  c.inbox = 8u << random.below(8);
  const auto probability = [&](double how_often, double most) {
    if (!random.chance(how_often)) return 0.0;
    const double share = unit(random.next());
    return most * share * unit(random.next());
  };
  c.lost = probability(0.7, 0.2);
  c.damaged = probability(0.3, 0.05);
  c.reordered = probability(0.5, 0.3);
  c.twice = probability(0.5, 0.2);
  c.twice_late = probability(0.5, 0.1);
  c.reordered_by = draw_time(random, 10e3, 3e6);
  c.late_by = draw_time(random, 1e6, 200e6);
  constexpr double kFirst = 10e3, kLast = 30e6, kShortest = 100e3, kLongest = 200e6;
  if (random.chance(0.25)) {
    for (uint32_t i = 1 + random.below(2); i > 0; --i) {
      const uint32_t host = 1 + random.below(hosts - 1);
      const int64_t from = draw_time(random, kFirst, kLast);
      // The switch above this host.
      uint32_t above = 0;
      for (const JobShape& job : s.jobs)
        if (s.leaves && host >= job.first_host && host < job.first_host + job.workers)
          above = 1 + (host - job.first_host) % s.leaves;
      c.outages.push_back({above, host, from, from + draw_time(random, kShortest, kLongest)});
    }
  }
  if (random.chance(0.25)) {
    for (uint32_t i = 1 + random.below(2); i > 0; --i) {
      const int64_t from = draw_time(random, kFirst, kLast);
      c.stops.push_back({random.below(hosts), from, from + draw_time(random, kShortest, kLongest)});
    }
  }
  if (random.chance(0.5)) {
    for (uint32_t i = 1 + random.below(30); i > 0; --i)
      c.foreign.push_back({random.below(hosts), draw_time(random, kFirst, kLast), random.next()});
  }
  s.timeout = 600 * kSecond;
  if (random.chance(0.08)) {
    s.crash = true;
    s.timeout = 20 * kSecond;
    const JobShape& job = s.jobs[0];
    c.stops.push_back({job.first_host + random.below(job.workers), draw_time(random, kFirst, kLast), kNever});
  }
  return s;
}

std::pair<Scenario, std::set<uint64_t>> shrink(const Scenario& scenario, const Outcome& failed, const Options& options) {
  Options quiet = options;
  quiet.timeline = quiet.capture = nullptr;
  int left = 1000;  // runs
  Scenario least = scenario;
  std::set<uint64_t> faults(failed.met.begin(), failed.met.end());
  const auto fails = [&](const Scenario& s, const std::set<uint64_t>& only) {
    return --left > 0 && !run_both(s, &only, quiet).failure.empty();
  };
  const auto simpler = [&](auto&& change) {
    Scenario other = least;
    if (!change(other) || !fails(other, faults)) return false;
    least = std::move(other);
    return true;
  };
  for (size_t j = 0; j < least.jobs.size(); ++j) {
    while (simpler([&](Scenario& s) { return s.jobs[j].times > 1 && s.jobs[j].times--; })) {}
    for (size_t c = least.jobs[j].calls.size(); c-- > 0;) {
      simpler([&](Scenario& s) {
        s.jobs[j].calls.erase(s.jobs[j].calls.begin() + static_cast<std::ptrdiff_t>(c));
        return true;
      });
    }
    for (size_t c = 0; c < least.jobs[j].calls.size(); ++c) {
      while (simpler([&](Scenario& s) { return (s.jobs[j].calls[c].count /= 2) > 0; })) {}
    }
    simpler([&](Scenario& s) { return s.jobs[j].think > 0 && (s.jobs[j].think = 0) == 0; });
  }
  // Without runs of faults, of shorter and shorter length.
  for (size_t length = std::max<size_t>(faults.size() / 2, 1); length > 0; length /= 2) {
    const std::vector<uint64_t> all(faults.begin(), faults.end());
    for (size_t at = 0; at < all.size(); at += length) {
      std::set<uint64_t> fewer = faults;
      for (size_t i = at; i < std::min(at + length, all.size()); ++i) fewer.erase(all[i]);
      if (fewer.size() < faults.size() && fails(least, fewer)) faults = std::move(fewer);
    }
  }
  return {least, faults};
}

}  // namespace simulation
