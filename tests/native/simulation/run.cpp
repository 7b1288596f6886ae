// Runs a schedule: the product's engines and switches on the network in virtual time.
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "switchagg/native/switch/loop.h"
#include "switchagg/native/worker/engine.h"
#include "tests/native/simulation/fiber.h"
#include "tests/native/simulation/schedule.h"

namespace simulation {
namespace {

[[noreturn]] void fail(const std::string& what) { throw Failure(what); }

// Packets that a host shows to the product, until it asks again.
class Shown {
 public:
  void take(Host& host, size_t most, std::vector<Received>& into) {
    for (Host::Packet& packet : shown_) spare_bytes.push_back(std::move(packet.bytes));
    shown_.clear();
    for (; !host.inbox.empty() && shown_.size() < most; host.inbox.pop_front()) shown_.push_back(std::move(host.inbox.front()));
    for (const Host::Packet& packet : shown_) {
      into.push_back(Received::whole(packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from));
      ++counters.packets_in;
    }
  }
  PortCounters counters;

 private:
  std::vector<Host::Packet> shown_;
};

class SwitchHost : public Host, public Port {
 public:
  SwitchHost() : loop(4096) { is_switch = true; }
  void run() override {
    loop.turn(*this);
    if (!inbox.empty()) network->wake(*this, virtual_ns + kMicrosecond);
  }
  bool wait(int64_t) override { return true; }
  void receive(std::vector<Received>& into) override { shown_.take(*this, 64, into); }
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override {
    for (const Endpoint& each : to)
      for (const Segment& segment : segments) network->send(*this, each, segment);
  }
  void wake() override {}
  Endpoint local() const override { return endpoint_of(number); }
  const PortCounters& counters() const override { return shown_.counters; }

  SwitchLoop loop;
  uint64_t initialised = 0;

 private:
  Shown shown_;
};

class WorkerHost : public Host {
 public:
  void run() override {
    if (program && !program->ended()) program->go_on();
    if (!program || program->ended()) inbox.clear();
  }
  std::unique_ptr<Fiber> program;
};

class WorkerPort : public Port {
 public:
  explicit WorkerPort(WorkerHost& host) : host_(host) {}
  bool wait(int64_t timeout_ns) override {
    if (!host_.inbox.empty()) return true;
    host_.network->wake(host_, virtual_ns + std::max(timeout_ns, kMicrosecond));
    Fiber::pause();
    return !host_.inbox.empty();
  }
  void receive(std::vector<Received>& into) override { shown_.take(host_, 64, into); }
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override {
    for (const Endpoint& each : to)
      for (const Segment& segment : segments) host_.network->send(host_, each, segment);
  }
  uint8_t* packet_memory(size_t bytes) override {  // from the heap: a mapping for each takes more time than the packets in it
    ring_.assign(bytes, 0);
    return ring_.data();
  }
  void wake() override {}
  Endpoint local() const override { return endpoint_of(host_.number); }
  const PortCounters& counters() const override { return shown_.counters; }

 private:
  WorkerHost& host_;
  Shown shown_;
  std::vector<uint8_t> ring_;
};

// A value that the type holds exactly, of any sign and of magnitudes some powers of two apart.
double draw_value(Random& random, int spread) {
  const uint32_t places = random.below(static_cast<uint32_t>(spread));
  const double value = static_cast<double>(1 + random.below(127)) / static_cast<double>(1u << places);
  return random.chance(0.5) ? value : -value;
}

// Not by _Float16, which not every compiler has. Of the bits of a float that float16 holds exactly, and that is no subnormal there.
uint16_t half_of(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (magnitude ? (magnitude >> 13) - (112 << 10) : 0));
}

double value_of_half(uint16_t half) {
  const int field = half >> 10 & 31, mantissa = half & 0x3FF;
  const double value = field ? std::ldexp(1024 + mantissa, field - 25) : std::ldexp(mantissa, -24);
  return half & 0x8000 ? -value : value;
}

void store_value(DType dtype, uint8_t* at, double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  const uint16_t half = half_of(bits), top = static_cast<uint16_t>(bits >> 16);
  if (dtype == DType::f64) std::memcpy(at, &value, 8);
  if (dtype == DType::f32) std::memcpy(at, &single, 4);
  if (dtype == DType::f16) std::memcpy(at, &half, 2);
  if (dtype == DType::bf16) std::memcpy(at, &top, 2);
}

double load_value(DType dtype, const uint8_t* at) {
  double value = 0;
  float single = 0;
  uint16_t half = 0, top = 0;
  if (dtype == DType::f64) return std::memcpy(&value, at, 8), value;
  if (dtype == DType::f32) return std::memcpy(&single, at, 4), static_cast<double>(single);
  if (dtype == DType::f16) return std::memcpy(&half, at, 2), value_of_half(half);
  std::memcpy(&top, at, 2);
  const uint32_t bits = uint32_t{top} << 16;
  std::memcpy(&single, &bits, 4);
  return static_cast<double>(single);
}

// One collective of one rank.
struct Task {
  std::vector<uint8_t> in, out;
  std::shared_ptr<Collective> work;
};

std::vector<uint8_t> draw_input(const CallShape& shape, uint32_t rank) {
  const uint32_t size = kElementBytes[static_cast<size_t>(shape.dtype)];
  std::vector<uint8_t> in(shape.count * size);
  const uint32_t all_alike = Random(shape.data).below(4);  // 0: ranks have their zero blocks in common
  Random random(mix(shape.data, rank)), zeros(all_alike ? mix(shape.data, 1000 + rank) : shape.data);
  const double empty = Random(mix(shape.data, 999)).chance(0.5) ? 0.8 : 0.1;
  bool zero = false;
  for (uint64_t i = 0; i < shape.count; ++i) {
    if (i % shape.block == 0) zero = zeros.chance(empty);
    if (shape.dtype > DType::bf16) {
      const uint64_t bits = zero ? 0 : random.next();
      std::memcpy(&in[i * size], &bits, size);
    } else {
      store_value(shape.dtype, &in[i * size], zero ? 0 : draw_value(random, shape.dtype == DType::f16 ? 6 : 30));
    }
  }
  return in;
}

// The inputs of a scenario, which each of its jobs, runs and checks needs.
class Inputs {
 public:
  const std::vector<uint8_t>& of(const CallShape& shape, uint32_t rank) {
    auto [at, fresh] = drawn_.try_emplace({shape.data, rank, shape.count, shape.block, static_cast<uint64_t>(shape.dtype)});
    if (fresh) at->second = draw_input(shape, rank);
    return at->second;
  }
  void clear() { drawn_.clear(); }

 private:
  std::map<std::array<uint64_t, 5>, std::vector<uint8_t>> drawn_;
};
Inputs inputs;

uint64_t hash_of(const std::vector<uint8_t>& bytes) {
  uint64_t hash = bytes.size();
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, &bytes[i], std::min<size_t>(8, bytes.size() - i));
    hash = mix(hash ^ word);
  }
  return hash;
}

// One job's incarnation: its slots, its engines and its workers' programs.
class Job {
 public:
  Job(Network& network, const Scenario& scenario, const JobShape& shape, uint32_t time, std::vector<SwitchHost>& switches,
      std::vector<std::unique_ptr<WorkerHost>>& hosts, bool init)
      : network_(network), scenario_(scenario), shape_(shape), time_(time), switches_(switches) {
    Random random(mix(scenario.seed, shape.id * 100 + time));
    const uint32_t first_seq = time ? static_cast<uint32_t>(random.next()) : shape.first_seq;
    const auto token = [&] { return static_cast<uint32_t>(random.next()); };
    std::vector<JobAdmission> entries(scenario.switches());
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i].job = shape.id;
      entries[i].base = shape.base[i];
      entries[i].slots = shape.slots;
      entries[i].words = shape.words;
      entries[i].result_token = token();
    }
    const auto admit = [&](size_t where, uint32_t host) {
      JobAdmission& entry = entries[where];
      entry.workers.push_back({endpoint_of(host), static_cast<uint32_t>(entry.workers.size()), token()});
      return entry.workers.back().token;
    };
    for (uint32_t leaf = 1; leaf <= scenario.leaves; ++leaf)
      entries[leaf].parent = ParentAdmission{endpoint_of(0), admit(0, leaf), shape.base[0], entries[0].result_token};
    for (uint32_t rank = 0; rank < shape.workers; ++rank) {
      const uint32_t above = scenario.leaves ? 1 + rank % scenario.leaves : 0;
      WorkerHost& host = *hosts[shape.first_host - scenario.switches() + rank];
      Admission admission;
      admission.job = shape.id;
      admission.token = admit(above, host.number);
      admission.result_token = entries[above].result_token;
      admission.base = shape.base[above];
      admission.slots = admission.window_limit = shape.slots;
      admission.words = shape.words;
      admission.first_seq = first_seq;
      admission.rank = rank;
      admission.workers = shape.workers;
      admission.switch_at = endpoint_of(above);
      host.incarnation = time;
      host.inbox.clear();  // a new process has a new socket
      auto worker = std::make_unique<Worker>(host, std::make_unique<Engine>(std::make_unique<WorkerPort>(host), admission, Surroundings{virtual_now, false}));
      workers_.push_back(std::move(worker));
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      switches_[i].loop.with_table([&](SlotTable& table) { table.add_job(entries[i]); });
      for (uint32_t p = 0; init && p < shape.slots; ++p) {
        wire::Header header;
        header.op = static_cast<uint8_t>(wire::Op::INIT);
        header.job = shape.id;
        header.seq = first_seq - shape.slots + p;
        header.slot = static_cast<uint16_t>(shape.base[i] + (header.seq & (shape.slots - 1)));
        uint8_t packet[wire::kHeaderBytes];
        header.write(packet);
        if (switches_[i].loop.packet_out(packet).action != Action::to_controller) fail("an INIT was not taken");
        ++switches_[i].initialised;
      }
    }
    for (uint32_t rank = 0; rank < shape.workers; ++rank) {
      Worker& worker = *workers_[rank];
      worker.host.program = std::make_unique<Fiber>([this, &worker, rank] { work(worker, rank); });
      network.wake(worker.host, virtual_ns + 1 + static_cast<int64_t>(unit(random.next()) * 1e5));
    }
  }

  // The programs have to end, so that nothing waits in a lock.
  ~Job() {
    stopping_ = true;
    for (auto& worker : workers_) {
      worker->engine->abort();
      while (!worker->host.program->ended()) worker->host.program->go_on();
      worker->host.program.reset();
    }
  }

  bool ended() const {
    for (const auto& worker : workers_)
      if (!worker->host.program->ended() && network_.stopped_until(worker->host) != kNever) return false;
    return true;
  }

  // Checks all results; adds the hashes of rank 0's, or of the first that has one.
  void check(std::vector<uint64_t>& hashes, const std::vector<uint64_t>* expected) {
    for (size_t i = 0; i < shape_.calls.size(); ++i) {
      const Task* first = nullptr;
      for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
        const Worker& worker = *workers_[rank];
        if (i >= worker.done) continue;
        const Task& task = worker.tasks[i];
        const bool known = expected && hashes.size() < expected->size();  // the bits are compared instead
        if (!first && !known) check_values(shape_.calls[i], task, rank);
        if (first && task.out != first->out) fail(name(i, rank) + " has other bits than another rank");
        if (!first) first = &task;
      }
      const uint64_t hash = first ? hash_of(first->out) : 0;
      const size_t index = hashes.size();
      if (first && expected && index < expected->size() && hash != (*expected)[index])
        fail(name(i, 0) + " has other bits than in the undisturbed run");
      hashes.push_back(hash);
    }
    uint64_t least = UINT64_MAX, most = 0, packet_numbers = 0;
    for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
      Worker& worker = *workers_[rank];
      if (network_.stopped_until(worker.host) == kNever) continue;
      least = std::min<uint64_t>(least, worker.done);
      most = std::max<uint64_t>(most, worker.done);
      packet_numbers = std::max(packet_numbers, worker.engine->stats().packet_numbers);
      if (!scenario_.crash && worker.done < shape_.calls.size())
        fail(name(worker.done, rank) + " ended with status " + std::to_string(static_cast<int>(worker.ended)));
    }
    if (least != most) fail("a collective is complete at some ranks only");
    if (scenario_.crash) return;
    // Every contribution was taken once, and nothing else was.
    for (size_t i = 0; i < switches_.size(); ++i) {
      const auto report = switches_[i].loop.with_table([&](SlotTable& table) { return table.report(shape_.id); });
      const uint64_t accepted = report.counters[static_cast<size_t>(wire::Event::accepted)];
      if (accepted != packet_numbers * report.workers.size())
        fail("switch " + std::to_string(i) + " took " + std::to_string(accepted) + " packets; accepted: " +
             std::to_string(packet_numbers * report.workers.size()));
    }
  }

  void remove() {
    for (SwitchHost& each : switches_) each.loop.with_table([&](SlotTable& table) { table.remove_job(shape_.id); });
  }
  uint32_t time() const { return time_; }
  const JobShape& shape() const { return shape_; }

 private:
  struct Worker {
    Worker(WorkerHost& at, std::unique_ptr<Engine> of) : host(at), engine(std::move(of)) {}
    WorkerHost& host;
    std::unique_ptr<Engine> engine;
    std::vector<Task> tasks;
    size_t done = 0;
    Status ended = Status::pending;
  };

  std::string name(size_t call, uint32_t rank) const {
    return "collective " + std::to_string(call) + " of job " + std::to_string(shape_.id) + ", time " + std::to_string(time_) +
           ", rank " + std::to_string(rank);
  }

  void work(Worker& worker, uint32_t rank) {
    Random random(mix(mix(scenario_.seed, shape_.id), rank));
    worker.tasks.resize(shape_.calls.size());
    for (size_t i = 0; i < shape_.calls.size();) {
      const size_t end = std::min(shape_.calls.size(), i + shape_.depth);
      for (size_t k = i; k < end; ++k) {
        pause(worker.host, random);
        submit(worker, k, rank);
      }
      for (; i < end; ++i) {
        Task& task = worker.tasks[i];
        while (worker.engine->wait(*task.work, kSecond) == Status::pending) {}
        worker.ended = task.work->status;
        network_.note("rank " + std::to_string(rank) + " of job " + std::to_string(shape_.id) + ": collective " +
                      std::to_string(i) + " has status " + std::to_string(static_cast<int>(worker.ended)));
        if (worker.ended != Status::done) return;
        ++worker.done;
      }
    }
  }

  void pause(WorkerHost& host, Random& random) {
    if (shape_.think == 0) return;
    const int64_t until = virtual_ns + random.between(0, shape_.think);
    while (virtual_ns < until && !stopping_) {
      network_.wake(host, until);
      Fiber::pause();
    }
  }

  void submit(Worker& worker, size_t index, uint32_t rank) {
    const CallShape& shape = shape_.calls[index];
    Task& task = worker.tasks[index];
    task.in = inputs.of(shape, rank);
    task.work = std::make_shared<Collective>();
    Call& call = task.work->call;
    call.kind = shape.kind;
    call.dtype = shape.dtype;
    call.bits = shape.bits;
    call.op = shape.op;
    call.root = shape.root;
    call.sparse = shape.sparse;
    call.block = shape.block;
    call.count = call.fingerprint_count = call.out_end = shape.count;
    call.workers = shape_.workers;
    call.rank = rank;
    call.in_end = shape.kind == Kind::broadcast && rank != shape.root ? 0 : shape.count;
    task.out.assign(task.in.size(), 0xEE);
    if (shape.in_place) task.out = task.in;
    call.in = shape.in_place ? task.out.data() : task.in.data();
    call.out = task.out.data();
    call.zero_fill = !shape.in_place;
    if (!worker.engine->submit(task.work, scenario_.timeout, false, 0)) fail("a call was not taken");
  }

  void check_values(const CallShape& shape, const Task& task, uint32_t rank) const {
    const uint32_t size = kElementBytes[static_cast<size_t>(shape.dtype)];
    std::vector<const uint8_t*> given;
    for (uint32_t r = 0; r < shape_.workers; ++r) given.push_back(inputs.of(shape, r).data());
    if (shape.kind == Kind::broadcast && task.out != inputs.of(shape, shape.root)) fail("wrong bytes of a broadcast");
    if (shape.kind != Kind::allreduce) return;
    for (uint64_t i = 0; i < shape.count; ++i) {
      if (shape.dtype > DType::bf16) {
        uint64_t sum = 0, value, got = 0;
        for (const uint8_t* const input : given) sum += (value = 0, std::memcpy(&value, &input[i * size], size), value);
        std::memcpy(&got, &task.out[i * size], size);
        if (((sum ^ got) & (size == 4 ? 0xFFFFFFFF : ~uint64_t{0})) != 0) fail("a wrong sum: element " + std::to_string(i) +
            " of rank " + std::to_string(rank));
        continue;
      }
      if (!(shape.bits <= kBounded)) continue;
      double sum = 0, magnitudes = 0;
      for (const uint8_t* const input : given) {
        const double value = load_value(shape.dtype, &input[i * size]);
        sum += value;
        magnitudes += std::abs(value);
      }
      if (shape.op == ReduceOp::avg) sum /= shape_.workers, magnitudes /= shape_.workers;
      const double rounding = shape.dtype == DType::bf16 ? 0x1p-8 : shape.dtype == DType::f16 ? 0x1p-10 : 0x1p-22;
      const double half_subnormal = shape.dtype == DType::f16 ? 0x1p-25 : 0;  // the others' are as good as 0 here
      const double bound = magnitudes * ((shape.bits == kBounded ? 0x1p-11 : 0) + rounding) + half_subnormal;
      const double got = load_value(shape.dtype, &task.out[i * size]);
      if (std::abs(got - sum) <= bound) continue;
      char text[160];
      std::snprintf(text, sizeof text, "element %llu is %.9g; accepted: %.9g +- %.3g (type %d, %d bits, op %d)",
                    static_cast<unsigned long long>(i), got, sum, bound, static_cast<int>(shape.dtype), shape.bits,
                    static_cast<int>(shape.op));
      fail(text);
    }
  }

  Network& network_;
  const Scenario& scenario_;
  const JobShape& shape_;
  const uint32_t time_;
  std::vector<SwitchHost>& switches_;
  std::vector<std::unique_ptr<Worker>> workers_;
  bool stopping_ = false;
};

}  // namespace

Outcome run(const Scenario& scenario, const std::set<uint64_t>* only, const std::vector<uint64_t>* expected,
            const Options& options) {
  virtual_ns = kSecond + static_cast<int64_t>(mix(scenario.seed) % kSecond);
  const int64_t started = virtual_ns;
  Network network(scenario.seed, scenario.conditions, only);
  std::vector<SwitchHost> switches(scenario.switches());
  std::vector<std::unique_ptr<WorkerHost>> hosts;
  for (SwitchHost& each : switches) network.add(each);
  for (const JobShape& job : scenario.jobs) {
    for (uint32_t i = 0; i < job.workers; ++i) {
      hosts.push_back(std::make_unique<WorkerHost>());
      network.add(*hosts.back());
    }
  }
  network.start();
  network.record_in(options.timeline, options.capture);
  Outcome outcome;
  try {
    std::vector<std::unique_ptr<Job>> jobs;
    const auto begin = [&](const JobShape& shape, uint32_t time) {
      outcome.workers += shape.workers;
      return std::make_unique<Job>(network, scenario, shape, time, switches, hosts, options.init);
    };
    for (const JobShape& shape : scenario.jobs) jobs.push_back(begin(shape, 0));
    // The order of results must not depend on which job ends first.
    std::vector<std::vector<uint64_t>> results(jobs.size());
    std::vector<size_t> first(jobs.size() + 1);
    for (size_t j = 0; j < jobs.size(); ++j) first[j + 1] = first[j] + scenario.jobs[j].calls.size() * scenario.jobs[j].times;
    size_t left = jobs.size();
    uint64_t ends = 0;
    for (uint64_t steps = 0; left > 0; ++steps) {
      if (!network.step()) fail("nothing happens any more, and collectives are not done");
      if (steps > 1'000'000) fail("no end after a million events");
      if (Fiber::ends() == ends && !scenario.crash) continue;
      ends = Fiber::ends();
      for (size_t j = 0; j < jobs.size(); ++j) {
        if (!jobs[j] || !jobs[j]->ended()) continue;
        std::vector<uint64_t> part;
        if (expected) part.assign(expected->begin() + static_cast<std::ptrdiff_t>(first[j]), expected->begin() + static_cast<std::ptrdiff_t>(first[j + 1]));
        jobs[j]->check(results[j], expected ? &part : nullptr);
        jobs[j]->remove();
        const uint32_t next = jobs[j]->time() + 1;
        jobs[j].reset();
        if (next < scenario.jobs[j].times && !scenario.crash) jobs[j] = begin(scenario.jobs[j], next);
        left -= !jobs[j];
      }
    }
    for (size_t j = 0; j < results.size(); ++j) {
      results[j].resize(first[j + 1] - first[j]);
      outcome.results.insert(outcome.results.end(), results[j].begin(), results[j].end());
    }
    for (SwitchHost& each : switches) {
      const auto counters = each.loop.with_table([](SlotTable& table) { return table.counters(); });
      const uint64_t received = counters[static_cast<size_t>(wire::Event::received)];
      if (received != each.counters().packets_in + each.initialised)
        fail("switch " + std::to_string(each.number) + " counts " + std::to_string(received) + " packets of " +
             std::to_string(each.counters().packets_in + each.initialised));
    }
  } catch (const std::exception& error) {
    outcome.failure = error.what();
    network.note(outcome.failure);
  }
  outcome.met = network.met();
  outcome.packets = network.packets();
  outcome.hash = network.hash();
  outcome.duration = virtual_ns - started;
  std::memcpy(&outcome.cells, &network.cells, sizeof outcome.cells);
  return outcome;
}

Outcome run_both(const Scenario& scenario, const std::set<uint64_t>* only, const Options& options) {
  inputs.clear();
  Options quiet = options;
  quiet.timeline = quiet.capture = nullptr;
  Scenario undisturbed = scenario;
  const std::set<uint64_t> none;
  undisturbed.crash = false;
  undisturbed.conditions.queue = kNever;
  undisturbed.conditions.inbox = UINT32_MAX;
  const Outcome first = run(undisturbed, &none, nullptr, quiet);
  if (!first.failure.empty()) {
    Outcome failed = run(undisturbed, &none, nullptr, options);
    failed.failure = "undisturbed: " + failed.failure;
    return failed;
  }
  return run(scenario, only, &first.results, options);
}

}  // namespace simulation
