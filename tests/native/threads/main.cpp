// threads ROUNDS: a switch and its workers as threads of one process, for the thread sanitizer.
//
// Of each worker, one thread calls collectives, one waits for them, one looks at everything that may be looked at while
// others drive; of the switch, the packet threads and one that asks for counters. Then membership changes, twice, while all
// of that goes on, and in the end an abort meets those who wait.
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/switch/fault_port.h"
#include "switchagg/native/switch/hub_port.h"
#include "switchagg/native/switch/shards.h"
#include "switchagg/native/worker/engine.h"
#include "switchagg/native/worker/link_port.h"
#include "switchagg/native/worker/slots_port.h"

using namespace switchagg;

namespace {

constexpr uint32_t kWorkers = 3, kSlots = 128, kWords = 64, kCount = 3000, kManyFloats = 150000, kCalls = 40;
constexpr uint16_t kJob = 5;
constexpr int64_t kSecond = 1'000'000'000;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "threads: %s\n", what);
  std::exit(1);
}

UdpOptions loopback() {
  UdpOptions options;
  options.bind = {0x7F000001, 0, 0};
  return options;
}

enum class Way { udp, links, slots, threads };

struct Switch {
  explicit Switch(Way by) : loops(4096, by == Way::threads ? 3 : 1), way(by) {
    UdpOptions options = loopback();
    options.share_address = way == Way::threads;
    auto udp = std::make_unique<UdpPort>(options);
    UdpPort& first = *udp;
    options.bind = udp->local();
    if (way != Way::udp) name = HubPort::random_name();
    port = std::make_unique<FaultPort>(with_links(std::move(udp), 0), FaultSettings{.loss = 0.01, .seed = 7});
    std::vector<Port*> ports{port.get()};
    for (uint32_t thread = 1; thread < loops.size(); ++thread)
      ports.push_back(others.emplace_back(with_links(std::make_unique<UdpPort>(options), thread)).get());
    if (way == Way::threads) first.steer_by_slot(static_cast<uint32_t>(loops.size()));
    loops.start(ports);
  }
  std::unique_ptr<Port> with_links(std::unique_ptr<UdpPort> udp, uint32_t thread) {
    if (name.empty()) return udp;
    SwitchLoop& loop = loops.at(thread);
    loop.with_table([](SlotTable& table) { table.share_records(); });
    return std::make_unique<HubPort>(
        std::move(udp),
        [&loop](uint16_t job, Endpoint worker, uint32_t token) {
          return loop.with_table([&](const SlotTable& table) { return table.admits(job, worker, token); });
        },
        [&loop](uint16_t job, Endpoint worker, uint32_t token) {
          return loop.with_table([&](const SlotTable& table) { return table.offer(job, worker, token); });
        },
        link::name_of(name, thread), static_cast<uint32_t>(loops.size()));
  }
  ~Switch() { loops.stop(); }

  // Admits workers with these sockets, instead of those before; returns what each needs.
  std::vector<Admission> admit(const std::vector<std::unique_ptr<UdpPort>>& sockets, uint32_t generation) {
    JobAdmission entry;
    entry.job = kJob;
    entry.base = 64;
    entry.slots = kSlots;
    entry.words = kWords;
    entry.result_token = 1000 + generation;
    entry.shared = way == Way::slots;
    std::vector<Admission> admissions(sockets.size());
    for (uint32_t rank = 0; rank < sockets.size(); ++rank) {
      entry.workers.push_back({sockets[rank]->local(), rank, 100 * (generation + 1) + rank});
      Admission& a = admissions[rank];
      a.job = kJob;
      a.token = entry.workers.back().token;
      a.result_token = entry.result_token;
      a.base = entry.base;
      a.slots = a.window_limit = kSlots;
      a.words = kWords;
      a.first_seq = generation * 77;
      a.rank = rank;
      a.workers = static_cast<uint32_t>(sockets.size());
      a.switch_at = port->local();
      if (way != Way::threads || rank > 0) a.link = name;  // of several threads one worker comes by UDP
      a.shared_slots = entry.shared;
    }
    if (generation > 0) loops.remove_job(kJob);
    loops.add_job(entry);
    for (uint32_t p = 0; p < kSlots; ++p) {
      wire::Header header;
      header.op = static_cast<uint8_t>(wire::Op::INIT);
      header.job = kJob;
      header.seq = generation * 77 - kSlots + p;
      header.slot = static_cast<uint16_t>(entry.base + (header.seq & (kSlots - 1)));
      uint8_t packet[wire::kHeaderBytes];
      header.write(packet);
      check(loops.packet_out(packet), "an INIT was not taken");
    }
    return admissions;
  }

  Shards loops;
  const Way way;
  std::string name;
  std::unique_ptr<Port> port;
  std::vector<std::unique_ptr<Port>> others;
};

std::unique_ptr<Port> connect(std::unique_ptr<UdpPort> socket, const Admission& admission) {
  if (admission.link.empty()) {
    socket->connect(admission.switch_at);
    return socket;
  }
  if (admission.shared_slots)
    return std::make_unique<SlotsPort>(socket, admission.link, admission.switch_at, admission.job, admission.token,
                                       admission.slots, admission.words);
  link::Shape shape;
  shape.packet_bytes = wire::kHeaderBytes + 4 * admission.words;
  shape.entries = std::max(link::Shape::kMinEntries, 4 * admission.slots);
  shape.memory_bytes = uint64_t{admission.slots} * shape.packet_bytes;
  return std::make_unique<LinkPort>(socket, admission.link, admission.switch_at, admission.job, admission.token, shape);
}

struct Task {
  std::vector<int32_t> values;
  std::shared_ptr<Collective> work = std::make_shared<Collective>();
};

struct Worker {
  Worker(uint32_t at, std::unique_ptr<Port> port, const Admission& admission) : rank(at), engine(std::move(port), admission) {}

  void call() {
    std::mt19937 random(rank);
    for (uint32_t i = 0; i < kCalls && !engine.broken(); ++i) {
      auto task = std::make_unique<Task>();
      // Floats need no packets where the workers share slots.
      const bool floats = i % 4 < 2;
      const uint32_t count = floats ? kManyFloats : kCount;
      const uint32_t value = rank + 1 + i;
      task->values.assign(count, std::bit_cast<int32_t>(floats ? std::bit_cast<uint32_t>(static_cast<float>(value)) : value));
      Call& call = task->work->call;
      call.kind = Kind::allreduce;
      call.dtype = floats ? DType::f32 : DType::i32;
      call.sparse = i % 2;
      call.count = call.fingerprint_count = call.in_end = call.out_end = count;
      call.in = call.out = reinterpret_cast<uint8_t*>(task->values.data());
      call.workers = kWorkers;
      call.rank = rank;
      const auto work = task->work;
      {
        std::lock_guard guard(lock);
        tasks.push_back(std::move(task));
      }
      // False: the membership has changed since the generation was read.
      while (!engine.submit(work, 60 * kSecond, random() % 2, engine.generation())) {}
      ++submitted;
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    }
  }

  void wait() {
    for (uint32_t i = 0; i < kCalls; ++i) {
      while (submitted <= i)
        if (engine.broken()) return;
        else std::this_thread::yield();
      Task* task;
      {
        std::lock_guard guard(lock);
        task = tasks[i].get();
      }
      while (engine.wait(*task->work, kSecond / 10) == Status::pending) {}
      if (task->work->status == Status::aborted || task->work->status == Status::lost) return;
      check(task->work->status == Status::done, "a collective was not done");
      const uint32_t total = kWorkers * (kWorkers + 1) / 2 + kWorkers * i;
      const int32_t sum = std::bit_cast<int32_t>(i % 4 < 2 ? std::bit_cast<uint32_t>(static_cast<float>(total)) : total);
      for (const int32_t value : task->values) check(value == sum, "a wrong sum");
      ++done;
    }
  }

  void look() {
    while (!ended) {
      (void)engine.stats();
      (void)engine.port_counters();
      (void)engine.begun();
      (void)engine.silence_ns(engine.completed());
      (void)engine.late();
      (void)(engine.frozen() || engine.is_halted() || engine.pause_requested() || engine.broken());
      (void)(engine.calls() + engine.policy());
      if (rank == 0) engine.set_policy(Policy::kValid | 64);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  const uint32_t rank;
  Engine engine;
  std::mutex lock;
  std::deque<std::unique_ptr<Task>> tasks;
  std::atomic<uint32_t> submitted{0}, done{0};
  std::atomic<bool> ended{false};
};

std::vector<std::unique_ptr<UdpPort>> sockets() {
  std::vector<std::unique_ptr<UdpPort>> made;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) made.push_back(std::make_unique<UdpPort>(loopback()));
  return made;
}

void round(Way way, bool abort) {
  Switch host(way);
  std::vector<std::unique_ptr<Worker>> workers;
  auto bound = sockets();
  auto admissions = host.admit(bound, 0);
  for (uint32_t rank = 0; rank < kWorkers; ++rank)
    workers.push_back(std::make_unique<Worker>(rank, connect(std::move(bound[rank]), admissions[rank]), admissions[rank]));

  std::vector<std::thread> threads, lookers;
  std::atomic<bool> ended{false};
  for (auto& each : workers) {
    Worker& worker = *each;
    threads.emplace_back([&worker] { worker.call(); });
    threads.emplace_back([&worker] { worker.wait(); });
    lookers.emplace_back([&worker] { worker.look(); });
  }
  lookers.emplace_back([&] {
    while (!ended) {
      try {
        (void)host.loops.report(kJob);
      } catch (const std::invalid_argument&) {  // between two generations
      }
      (void)host.loops.port_counters();
      (void)host.loops.strays();
      check(host.loops.failure().empty(), "a packet thread has ended");
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });

  for (uint32_t generation = 1; generation <= 2; ++generation) {
    while (workers[0]->done < generation * kCalls / 4) std::this_thread::sleep_for(std::chrono::microseconds(100));
    // All ranks stop after the same collective, which the header of rank 0 names, or, after freeze(), at the farthest.
    if (generation == 1) {
      workers[0]->engine.request_pause();
      for (auto& worker : workers)
        while (!worker->engine.is_halted()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    uint64_t farthest = 0;
    for (auto& worker : workers) farthest = std::max(farthest, worker->engine.freeze());
    for (auto& worker : workers) check(worker->engine.finish(farthest, 60 * kSecond), "a change was not finished");
    bound = sockets();
    admissions = host.admit(bound, generation);
    // Begun collectives that are complete nowhere would be lost.
    if (generation == 2) break;
    for (uint32_t rank = 0; rank < kWorkers; ++rank)
      check(workers[rank]->engine.resume(connect(std::move(bound[rank]), admissions[rank]), admissions[rank], false), "resume");
  }
  if (!abort)
    for (uint32_t rank = 0; rank < kWorkers; ++rank)
      workers[rank]->engine.resume(connect(std::move(bound[rank]), admissions[rank]), admissions[rank], true);
  for (auto& worker : workers) worker->engine.abort();
  for (auto& thread : threads) thread.join();
  for (auto& worker : workers) worker->ended = true;
  ended = true;
  for (auto& thread : lookers) thread.join();
  uint32_t done = 0;
  for (auto& worker : workers) {
    worker->engine.close();
    done += worker->done;
  }
  constexpr const char* names[] = {"UDP", "links", "shared slots", "threads"};
  std::printf("%s: %u collectives\n", names[static_cast<int>(way)], done);
}

// Sums of so many rounds of each slot. Word i of a worker's packet q is (worker + 1) * q + i, of the first that are used. Workers that
// are last complete rounds.
void shared_slots() {
  constexpr uint32_t kRounds = 300, kShared = 8;
  const SharedSlots::Shape shape{kWorkers, kShared, wire::kMinWords};
  SharedMemory memory = SharedMemory::make(shape.bytes(), false);
  SharedSlots slots(memory.get(), shape);
  const uint32_t bits[] = {1, 2, 4};
  slots.make(kJob, 0, 1, bits);
  for (uint32_t i = 0; i < kShared; ++i) slots.initialise(i - kShared);
  const auto used = [](uint32_t seq) { return wire::kMinWords - seq % 7; };
  std::atomic<uint32_t> completed{0};
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&slots, &completed, &used, worker] {
      uint32_t sent = 0;
      for (uint32_t held = 0; held < kRounds * kShared; ++held) {
        for (; sent < held + kShared / 2; ++sent) {
          uint8_t* const record = slots.record(worker, sent % kShared) + wire::kHeaderBytes;
          uint8_t elsewhere[4 * wire::kMinWords], view[4 * wire::kMinWords];
          const bool is_last = slots.is_last(worker, sent);
          uint8_t* const words = is_last ? elsewhere : record;
          const bool skip = (sent + worker) % 5 == 0;
          for (uint32_t i = 0; i < wire::kMinWords && !skip; ++i)
            wire::store32(words + 4 * i, i < used(sent) ? (worker + 1) * sent + i : 0);
          if (!is_last || skip) {
            check(slots.contribute(worker, sent, !skip, false).accepted, "a contribution was not taken");
            continue;
          }
          ++completed;
          check(slots.complete(worker, sent, words, used(sent)).completing, "a last contribution has completed no round");
          check(slots.done(sent), "a round that was completed is not done");
          slots.view(sent % kShared, view);
          check(std::memcmp(view, slots.result(sent).words, 4 * used(sent)) == 0, "a view differs from the sum");
          for (uint32_t i = used(sent); i < wire::kMinWords; ++i) check(wire::load32(view + 4 * i) == 0, "a view has words of another sum");
          slots.restore(worker, sent);
          check(std::memcmp(record, elsewhere, sizeof elsewhere) == 0, "a record was restored wrong");
        }
        while (!slots.done(held) && !slots.finish(held, used(held))) std::this_thread::yield();
        const SharedSlots::Words result = slots.result(held);
        for (uint32_t i = 0; i < used(held); ++i) {
          uint32_t sum = 0;
          for (uint32_t other = 0; other < kWorkers; ++other) sum += (held + other) % 5 ? (other + 1) * held + i : 0;
          check(result.words && wire::load32(result.words + 4 * i) == sum, "a wrong sum in shared slots");
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  check(completed > 0, "no worker was the last of a round");
}

}  // namespace

int main(int n, char** words) {
  const int rounds = n > 1 ? std::atoi(words[1]) : 4;
  shared_slots();
  for (int i = 0; i < rounds; ++i) round(static_cast<Way>(i % 4), i % 8 > 3);
}
