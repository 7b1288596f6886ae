// A schedule: jobs on one switch, or on leaves and a root, and what the network and the processes do to them.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "switchagg/native/worker/plan.h"
#include "tests/native/simulation/network.h"

namespace simulation {

struct CallShape {
  Kind kind = Kind::allreduce;
  DType dtype = DType::i32;
  uint8_t bits = 32, root = 0;
  ReduceOp op = ReduceOp::sum;
  bool sparse = false, in_place = false;
  uint32_t block = 64;
  uint64_t count = 0;
  uint64_t data = 0;  // seed of the values
};

struct JobShape {
  uint16_t id = 1;
  uint32_t workers = 2, slots = 8, words = 32, first_seq = 0, first_host = 0;
  std::vector<uint32_t> base;  // of each switch
  uint32_t depth = 1;          // collectives submitted at once
  int64_t think = 0;           // longest time between two of them
  std::vector<CallShape> calls;
  uint32_t times = 1;  // jobs one after another in the same slots, with the same id
};

struct Scenario {
  uint64_t seed = 0;
  uint32_t leaves = 0;  // 0: one switch
  std::vector<JobShape> jobs;
  Conditions conditions;
  int64_t timeout = 0;
  bool crash = false;

  uint32_t switches() const { return leaves ? leaves + 1 : 1; }
};

Scenario draw(uint64_t seed);

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Outcome {
  std::string failure;             // empty: all was right
  std::vector<uint64_t> met;       // ids of faults
  std::vector<uint64_t> results;   // hashes of rank 0's results
  uint64_t packets = 0, workers = 0, hash = 0;
  int64_t duration = 0;            // virtual
  Cells cells = {};
};

struct Options {
  bool init = true;  // false: a mistake, to see that it is found
  FILE* timeline = nullptr;
  FILE* capture = nullptr;
};

// `only`: ids of the faults that may happen; null: all. `expected`: `results` of an undisturbed run, or null.
Outcome run(const Scenario& scenario, const std::set<uint64_t>* only, const std::vector<uint64_t>* expected,
            const Options& options);

// Undisturbed first, then with all faults. The bits of the results have to be the same.
Outcome run_both(const Scenario& scenario, const std::set<uint64_t>* only, const Options& options);

// The least calls and faults with which it still fails that were found.
std::pair<Scenario, std::set<uint64_t>> shrink(const Scenario& scenario, const Outcome& failed, const Options& options);

}  // namespace simulation
