// simulation SEED COUNT [--without-init] [--explain FOLDER]: runs the schedules of COUNT seeds from SEED on.
//
// Prints what they were and the cells of faults and states; of the first one that fails its seed, and returns 1. With
// --explain it makes that smaller, and leaves a timeline and a capture in the folder.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/native/simulation/schedule.h"

using namespace simulation;

namespace {

int explain(const Scenario& scenario, const Outcome& failed, Options options, const std::string& folder) {
  const auto [least, faults] = shrink(scenario, failed, options);
  options.timeline = std::fopen((folder + "/timeline.txt").c_str(), "w");
  options.capture = std::fopen((folder + "/packets.pcap").c_str(), "wb");
  if (!options.timeline || !options.capture) {
    std::fprintf(stderr, "no file can be written in %s\n", folder.c_str());
    return 2;
  }
  std::fprintf(options.timeline, "seed %llu: %u leaves, hosts 0 to %u are switches\n",
               static_cast<unsigned long long>(least.seed), least.leaves, least.switches() - 1);
  for (const JobShape& job : least.jobs)
    std::fprintf(options.timeline, "job %u: %u workers from host %u on, P = %u, K = %u, %zu collectives, %u times\n", job.id,
                 job.workers, job.first_host, job.slots, job.words, job.calls.size(), job.times);
  const Outcome again = run_both(least, &faults, options);
  std::fclose(options.timeline);
  std::fclose(options.capture);
  std::printf("explained %s\n", again.failure.c_str());
  std::printf("faults %zu of %zu, packets %llu\n", faults.size(), std::set<uint64_t>(failed.met.begin(), failed.met.end()).size(),
              static_cast<unsigned long long>(again.packets));
  return 1;
}

}  // namespace

int main(int n, char** words) {
  if (n < 3) {
    std::fprintf(stderr, "simulation SEED COUNT [--without-init] [--explain FOLDER]\n");
    return 2;
  }
  const uint64_t seed = std::strtoull(words[1], nullptr, 10), count = std::strtoull(words[2], nullptr, 10);
  Options options;
  std::string folder;
  for (int i = 3; i < n; ++i) {
    if (!std::strcmp(words[i], "--without-init")) options.init = false;
    if (!std::strcmp(words[i], "--explain") && i + 1 < n) folder = words[++i];
  }
  const auto begun = std::chrono::steady_clock::now();
  uint64_t packets = 0, workers = 0, met = 0, hash = 0, small = 0, crashes = 0, trees = 0;
  int64_t duration = 0;
  Cells cells = {};
  for (uint64_t s = seed; s < seed + count; ++s) {
    const Scenario scenario = draw(s);
    const Outcome outcome = run_both(scenario, nullptr, options);
    if (!outcome.failure.empty()) {
      std::printf("failed %llu after %llu: %s\n", static_cast<unsigned long long>(s), static_cast<unsigned long long>(s - seed + 1),
                  outcome.failure.c_str());
      return folder.empty() ? 1 : explain(scenario, outcome, options, folder);
    }
    packets += outcome.packets;
    workers += outcome.workers;
    met += outcome.met.size();
    small += outcome.packets < 300;
    crashes += scenario.crash;
    trees += scenario.leaves > 0;
    duration += outcome.duration;
    hash = mix(hash, outcome.hash);
    for (size_t t = 0; t < 2; ++t)
      for (size_t i = 0; i < kStates; ++i)
        for (size_t f = 0; f < kFaults; ++f) cells[t][i][f] += outcome.cells[t][i][f];
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("schedules %llu\nsmall %llu\ntrees %llu\ncrashes %llu\npackets %llu\nworkers %llu\nfaults %llu\nhash %016llx\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(small), static_cast<unsigned long long>(trees),
              static_cast<unsigned long long>(crashes), static_cast<unsigned long long>(packets),
              static_cast<unsigned long long>(workers), static_cast<unsigned long long>(met), static_cast<unsigned long long>(hash));
  std::printf("virtual_seconds %.3f\nseconds %.3f\n", static_cast<double>(duration) / 1e9, seconds);
  for (size_t t = 0; t < 2; ++t)
    for (size_t i = 0; i < kStates; ++i)
      for (size_t f = 0; f < kFaults; ++f)
        std::printf("cell %s%s\t%s\t%llu\n", t ? "leaf: " : "", kStateNames[i], kFaultNames[f],
                    static_cast<unsigned long long>(cells[t][i][f]));
  return 0;
}
