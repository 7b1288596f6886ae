// The data path of a whole system for Python: engines and switches on the network in virtual time, as C functions.
//
// Python has the processes, the control plane and the faults that come at a time; see tests/simulation. run() goes on
// until a time, or until something has happened to an engine that a thread of its process may wait for.
#include <cstring>
#include <memory>

#include "switchagg/native/switch/loop.h"
#include "switchagg/native/worker/engine.h"
#include "switchagg/native/worker/heartbeat.h"
#include "tests/native/simulation/network.h"

namespace simulation {
namespace {

std::string failure;  // of the last call that returned kFailed
constexpr int64_t kFailed = -1;

template <typename Function>
int64_t guarded(Function&& function) {
  try {
    return static_cast<int64_t>(function());
  } catch (const std::exception& error) {
    failure = error.what();
    return kFailed;
  }
}

struct Socket {
  uint16_t port;
  uint64_t refused = 0;
  std::deque<Host::Packet> inbox;
  bool taken = false;  // by an engine
};

class Node : public Host {
 public:
  bool listens(uint16_t port) const override { return find(port) != nullptr; }
  void refused(uint16_t port) override {
    if (Socket* const socket = find(port)) ++socket->refused;
  }
  Socket* find(uint16_t port) const {
    for (const auto& each : sockets)
      if (each->port == port) return each.get();
    return nullptr;
  }
  void sort() {  // packets into the sockets that they are for
    for (; !inbox.empty(); inbox.pop_front())
      if (Socket* const socket = find(inbox.front().to_port)) socket->inbox.push_back(std::move(inbox.front()));
  }
  std::vector<std::shared_ptr<Socket>> sockets;
};

class NodePort : public Port {
 public:
  NodePort(Node& node, std::shared_ptr<Socket> socket) : node_(node), socket_(std::move(socket)) {}
  ~NodePort() override { std::erase(node_.sockets, socket_); }
  bool wait(int64_t) override { return true; }
  void receive(std::vector<Received>& into) override {
    node_.sort();
    shown_.clear();
    for (auto& inbox = socket_->inbox; !inbox.empty() && shown_.size() < 64; inbox.pop_front())
      shown_.push_back(std::move(inbox.front()));
    for (const Host::Packet& packet : shown_)
      into.push_back(Received::whole(packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from));
    counters_.packets_in += shown_.size();
  }
  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override {
    for (const Endpoint& each : to)
      for (const Segment& segment : segments) node_.network->send(node_, each, segment, socket_->port);
    counters_.packets_out += to.size() * segments.size();
  }
  void wake() override {}
  Endpoint local() const override { return endpoint_of(node_.number, socket_->port); }
  const PortCounters& counters() const override {
    counters_.refused = socket_->refused;
    return counters_;
  }
  bool has_packets() const {
    node_.sort();
    return !socket_->inbox.empty();
  }

 private:
  Node& node_;
  const std::shared_ptr<Socket> socket_;
  std::vector<Host::Packet> shown_;
  mutable PortCounters counters_;
};

class SwitchNode : public Node {
 public:
  SwitchNode() { is_switch = true; }
  void start(uint32_t capacity) {
    stop();
    loop_ = std::make_unique<SwitchLoop>(capacity);
    sockets.push_back(std::make_shared<Socket>(Socket{kPort, 0, {}}));
    port_ = std::make_unique<NodePort>(*this, sockets.back());
  }
  void stop() {
    loop_.reset();
    port_.reset();
    inbox.clear();
  }
  void run() override {
    if (!loop_) return inbox.clear();
    loop_->turn(*port_);
    if (port_->has_packets()) network->wake(*this, virtual_ns + kMicrosecond);
  }
  SwitchLoop& loop() {
    if (!loop_) throw std::runtime_error("the switch does not run");
    return *loop_;
  }

 private:
  std::unique_ptr<NodePort> port_;
  std::unique_ptr<SwitchLoop> loop_;
};

class WorkerNode : public Node {
 public:
  ~WorkerNode() override { die(); }
  uint16_t open() {
    sockets.push_back(std::make_shared<Socket>(Socket{next_port_, 0, {}}));
    return next_port_++;
  }
  void close(uint16_t port) {
    std::erase_if(sockets, [&](const auto& each) { return each->port == port; });
  }
  std::unique_ptr<Port> take(uint16_t port) {
    for (const auto& each : sockets) {
      if (each->port != port) continue;
      each->taken = true;
      return std::make_unique<NodePort>(*this, each);
    }
    throw std::invalid_argument("there is no socket at port " + std::to_string(port));
  }
  // Its process has ended: nothing is sent any more, and the kernel closes its sockets.
  void die() {
    engine.reset();
    works.clear();
    pending_.clear();
    sockets.clear();
    inbox.clear();
    drivers = 0;
  }
  void run() override {
    if (!engine) return;
    if (drivers > 0 || engine->wants_driver()) {
      bool arrived = has_packets();
      int64_t at = 0;
      for (int steps = 0; at == 0; arrived = false) {
        if (++steps > 100'000) throw std::runtime_error("an engine takes steps without an end");
        at = engine->step(virtual_ns, arrived);
      }
      if (has_packets()) at = virtual_ns + kMicrosecond;
      if (at < kNever) network->wake(*this, at);
    }
    look();
  }
  void look() {
    const size_t ended = std::erase_if(pending_, [](const auto& work) { return work->status != Status::pending; });
    const int state = engine->is_halted() + 2 * engine->broken();
    has_news = has_news || ended > 0 || state != state_;
    state_ = state;
  }
  void submitted(const std::shared_ptr<Collective>& work) {
    works.push_back(work);
    pending_.push_back(work);
  }

  std::unique_ptr<Engine> engine;
  std::vector<std::shared_ptr<Collective>> works;
  int drivers = 0;        // threads of the process that wait in the engine
  bool has_news = false;  // something has happened that one of them may wait for

 private:
  bool has_packets() {
    sort();
    return std::ranges::any_of(sockets, [](const auto& each) { return each->taken && !each->inbox.empty(); });
  }

  std::vector<std::shared_ptr<Collective>> pending_;
  uint16_t next_port_ = 40000;
  int state_ = 0;
};

struct System {
  Conditions conditions;
  std::set<uint64_t> only;
  std::unique_ptr<Network> network;
  std::vector<std::unique_ptr<SwitchNode>> switches;
  std::vector<std::unique_ptr<WorkerNode>> workers;
  FILE* timeline = nullptr;
  FILE* capture = nullptr;

  SwitchNode& switch_at(uint32_t host) { return *switches.at(host); }
  WorkerNode& worker(uint32_t host) { return *workers.at(host - switches.size()); }
  Engine& engine(uint32_t host) {
    if (!worker(host).engine) throw std::runtime_error("the process has ended");
    return *worker(host).engine;
  }
  Host& host(uint32_t number) {
    if (number < switches.size()) return switch_at(number);
    return worker(number);
  }
  ~System() {
    workers.clear();
    switches.clear();
    if (timeline) std::fclose(timeline);
    if (capture) std::fclose(capture);
  }
};

std::unique_ptr<System> the;

Admission admission_of(const uint32_t* v) {
  Admission a;
  a.switch_at = {v[0], static_cast<uint16_t>(v[1]), 0};
  a.job = static_cast<uint16_t>(v[2]);
  a.token = v[3];
  a.result_token = v[4];
  a.base = v[5];
  a.slots = v[6];
  a.words = v[7];
  a.first_seq = v[8];
  a.rank = v[9];
  a.workers = v[10];
  a.window_limit = v[11];
  a.policy = v[12];
  a.weight = v[13];
  return a;
}

constexpr size_t kAdmission = 14;  // numbers of one

// The ways of an engine's stripes but the first.
std::vector<Attachment> ways(uint32_t host, uint32_t count, const uint32_t* ports, const uint32_t* admissions) {
  std::vector<Attachment> found;
  for (uint32_t i = 1; i < count; ++i)
    found.push_back({the->worker(host).take(static_cast<uint16_t>(ports[i])), admission_of(admissions + i * kAdmission)});
  return found;
}

}  // namespace
}  // namespace simulation

using namespace simulation;

extern "C" {

const char* system_failure() { return failure.c_str(); }

struct Settings {
  uint64_t seed;
  uint32_t switches, workers;
  int64_t delay, jitter, latency, queue, inbox, reordered_by, late_by;
  double ns_per_byte, lost, damaged, reordered, twice, twice_late;
};

// `only`: the ids of packets' faults that may happen, if there are `count` or more than none; -1: all.
int64_t system_open(const Settings* s, const uint64_t* only, int64_t count, const char* timeline, const char* capture) {
  return guarded([&] {
    virtual_ns = kSecond;
    the = std::make_unique<System>();
    Conditions& c = the->conditions;
    c.delay = s->delay;
    c.jitter = s->jitter;
    c.latency = s->latency;
    c.queue = s->queue;
    c.inbox = static_cast<uint32_t>(s->inbox);
    c.reordered_by = s->reordered_by;
    c.late_by = s->late_by;
    c.ns_per_byte = s->ns_per_byte;
    c.lost = s->lost;
    c.damaged = s->damaged;
    c.reordered = s->reordered;
    c.twice = s->twice;
    c.twice_late = s->twice_late;
    if (count > 0) the->only.insert(only, only + count);
    the->network = std::make_unique<Network>(s->seed, c, count < 0 ? nullptr : &the->only);
    for (uint32_t i = 0; i < s->switches; ++i) the->network->add(*the->switches.emplace_back(std::make_unique<SwitchNode>()));
    for (uint32_t i = 0; i < s->workers; ++i) the->network->add(*the->workers.emplace_back(std::make_unique<WorkerNode>()));
    the->network->start();
    if (timeline && !(the->timeline = std::fopen(timeline, "w"))) throw std::runtime_error("no timeline can be written");
    if (capture && !(the->capture = std::fopen(capture, "wb"))) throw std::runtime_error("no capture can be written");
    the->network->record_in(the->timeline, the->capture);
    return 0;
  });
}
void system_close() { the.reset(); }
int64_t system_now() { return virtual_ns; }
void system_note(const char* text) { the->network->note(text); }
uint64_t system_packets() { return the->network->packets(); }
uint64_t system_hash() { return the->network->hash(); }
int64_t system_met(uint64_t* into, int64_t room) {
  const auto& met = the->network->met();
  std::copy_n(met.begin(), std::min<int64_t>(room, static_cast<int64_t>(met.size())), into);
  return static_cast<int64_t>(met.size());
}
void system_cells(uint64_t* into) { std::memcpy(into, the->network->cells, sizeof(Cells)); }
void system_cut(uint32_t one, uint32_t other, int down) { the->network->cut(one, other, down != 0); }
void system_stop(uint32_t host, int64_t until) { the->host(host).stopped = until; }

// Goes on to a time, or until an engine has news. Returns its host, or -2.
int64_t system_run(int64_t until) {
  return guarded([&]() -> int64_t {
    for (;;) {
      for (size_t i = 0; i < the->workers.size(); ++i)
        if (std::exchange(the->workers[i]->has_news, false)) return static_cast<int64_t>(the->switches.size() + i);
      if (the->network->next_at() > until) break;
      the->network->step();
    }
    virtual_ns = std::max(virtual_ns, until);
    return -2;
  });
}

// ------------------------------------------------------------------------------------------------ switches

int64_t switch_start(uint32_t host, uint32_t capacity) { return guarded([&] { the->switch_at(host).start(capacity); return 0; }); }
void switch_stop(uint32_t host) { the->switch_at(host).stop(); }
// `worker`: of each four numbers, address, port, bit, token. `parent`: five numbers, address, port, token, base, result token.
int64_t switch_add(uint32_t host, const uint32_t* job, const uint32_t* worker, uint32_t workers, const uint32_t* parent) {
  return guarded([&] {
    JobAdmission entry;
    entry.job = static_cast<uint16_t>(job[0]);
    entry.base = job[1];
    entry.slots = job[2];
    entry.words = job[3];
    entry.result_token = job[4];
    for (uint32_t i = 0; i < workers; ++i, worker += 4)
      entry.workers.push_back({{worker[0], static_cast<uint16_t>(worker[1]), 0}, worker[2], worker[3]});
    if (parent) entry.parent = {{parent[0], static_cast<uint16_t>(parent[1]), 0}, parent[2], parent[3], parent[4]};
    the->switch_at(host).loop().with_table([&](SlotTable& table) { table.add_job(entry); });
    return 0;
  });
}
int64_t switch_remove(uint32_t host, uint32_t job) {
  return guarded([&] {
    the->switch_at(host).loop().with_table([&](SlotTable& table) { table.remove_job(static_cast<uint16_t>(job)); });
    return 0;
  });
}
int64_t switch_fence(uint32_t host, uint32_t job, uint32_t bits) {
  return guarded([&] {
    the->switch_at(host).loop().with_table([&](SlotTable& table) { table.fence(static_cast<uint16_t>(job), bits); });
    return 0;
  });
}
// Returns 1 if the packet came back.
int64_t switch_packet_out(uint32_t host, const uint8_t* packet, uint32_t size) {
  return guarded([&] { return the->switch_at(host).loop().packet_out({packet, size}).action == Action::to_controller; });
}
// Sequence number, seen and filled of a slot.
int64_t switch_slot(uint32_t host, uint32_t index, uint32_t* into) {
  return guarded([&] {
    the->switch_at(host).loop().with_table([&](SlotTable& table) {
      const SlotTable::SlotView view = table.slot(index);
      into[0] = view.seq;
      into[1] = view.seen;
      into[2] = view.filled;
    });
    return 0;
  });
}

// ------------------------------------------------------------------------------------------------ workers

int64_t worker_socket(uint32_t host) { return the->worker(host).open(); }
void worker_close_socket(uint32_t host, uint32_t port) { the->worker(host).close(static_cast<uint16_t>(port)); }
void worker_die(uint32_t host) { the->worker(host).die(); }
// Threads of the process that wait in the engine: one more, or one fewer.
void worker_drivers(uint32_t host, int more) {
  WorkerNode& node = the->worker(host);
  node.drivers += more;
  if (more > 0) the->network->wake(node, virtual_ns);
}
int64_t engine_open(uint32_t host, uint32_t count, const uint32_t* ports, const uint32_t* admissions) {
  return guarded([&] {
    WorkerNode& node = the->worker(host);
    node.engine = std::make_unique<Engine>(node.take(static_cast<uint16_t>(ports[0])), admission_of(admissions),
                                           Surroundings{virtual_now, false}, ways(host, count, ports, admissions));
    return 0;
  });
}

struct CallFields {
  int32_t kind, op, dtype, bits, root, sparse;
  uint32_t block, shape_crc, workers, rank, policy;
  uint64_t count, fingerprint_count, in_begin, in_end, out_begin, out_end;
  void *in, *out, *mask, *memory, *union_out;
  int32_t zero_fill, auto_zeros, auto_block, auto_lanes;
};

// Returns the number of the collective on this host; -2: the engine is in another generation.
int64_t engine_submit(uint32_t host, const CallFields* f, int64_t timeout_ns, int background, uint32_t generation) {
  return guarded([&]() -> int64_t {
    auto work = std::make_shared<Collective>();
    Call& c = work->call;
    c.kind = static_cast<Kind>(f->kind);
    c.op = static_cast<ReduceOp>(f->op);
    c.dtype = static_cast<DType>(f->dtype);
    c.bits = static_cast<uint8_t>(f->bits);
    c.root = static_cast<uint8_t>(f->root);
    c.sparse = f->sparse;
    c.block = f->block;
    c.count = f->count;
    c.fingerprint_count = f->fingerprint_count;
    c.shape_crc = f->shape_crc;
    c.workers = f->workers;
    c.rank = f->rank;
    c.policy = f->policy;
    c.auto_zeros = f->auto_zeros;
    c.auto_block = f->auto_block;
    c.auto_lanes = static_cast<uint8_t>(f->auto_lanes);
    c.in = static_cast<const uint8_t*>(f->in);
    c.in_begin = f->in_begin;
    c.in_end = f->in_end;
    c.out = static_cast<uint8_t*>(f->out);
    c.out_begin = f->out_begin;
    c.out_end = f->out_end;
    c.mask = static_cast<const uint32_t*>(f->mask);
    c.memory = static_cast<float*>(f->memory);
    c.union_out = static_cast<uint32_t*>(f->union_out);
    c.zero_fill = f->zero_fill;
    WorkerNode& node = the->worker(host);
    if (!the->engine(host).submit(work, timeout_ns, background != 0, generation)) return -2;
    node.submitted(work);
    the->network->wake(node, virtual_ns);
    return static_cast<int64_t>(node.works.size() - 1);
  });
}
// Status, call number, generation, when submitted and ended, packets, results, policy, five words of difference.
void work_fields(uint32_t host, uint32_t number, int64_t* into) {
  const Collective& c = *the->worker(host).works.at(number);
  const int64_t fields[] = {static_cast<int64_t>(c.status.load()), c.call.call_number, c.generation, c.submitted_at, c.ended_at,
                            static_cast<int64_t>(c.packets), static_cast<int64_t>(c.results), c.policy};
  std::copy(std::begin(fields), std::end(fields), into);
  std::copy(std::begin(c.difference), std::end(c.difference), into + std::size(fields));
}
int64_t work_status(uint32_t host, uint32_t number) { return static_cast<int64_t>(the->worker(host).works.at(number)->status.load()); }

int64_t engine_freeze(uint32_t host) { return guarded([&] { return the->engine(host).freeze(); }); }
int64_t engine_finish(uint32_t host, uint64_t complete_to) { return guarded([&] { return the->engine(host).finish(complete_to, 0); }); }
int64_t engine_resume(uint32_t host, uint32_t count, const uint32_t* ports, const uint32_t* admissions, int lost) {
  return guarded([&] {
    const bool done = the->engine(host).resume(the->worker(host).take(static_cast<uint16_t>(ports[0])), admission_of(admissions),
                                               lost != 0, ways(host, count, ports, admissions));
    the->network->wake(the->worker(host), virtual_ns);
    return done;
  });
}
// Both write a number of each stripe, and return how many there are.
int64_t engine_suspend(uint32_t host, uint64_t* into) {
  return guarded([&] { return std::ranges::copy(the->engine(host).suspend(), into).out - into; });
}
int64_t engine_refused(uint32_t host, uint64_t* into) {
  return guarded([&] { return std::ranges::copy(the->engine(host).refused(), into).out - into; });
}
int64_t engine_move(uint32_t host, uint32_t port, const uint32_t* admission, uint64_t first, uint32_t stripe, int more) {
  return guarded([&] {
    const bool done = the->engine(host).move(the->worker(host).take(static_cast<uint16_t>(port)), admission_of(admission), first,
                                             stripe, more != 0);
    the->network->wake(the->worker(host), virtual_ns);
    return done;
  });
}
int64_t engine_fail_from(uint32_t host, uint64_t begun) { return guarded([&] { the->engine(host).fail_from(begun); return 0; }); }
int64_t engine_abort(uint32_t host) { return guarded([&] { the->engine(host).abort(); return 0; }); }
int64_t engine_close(uint32_t host) { return guarded([&] { the->engine(host).close(); return 0; }); }
int64_t engine_request_pause(uint32_t host) { return guarded([&] { the->engine(host).request_pause(); return 0; }); }
int64_t engine_set_policy(uint32_t host, uint32_t word) { return guarded([&] { the->engine(host).set_policy(word); return 0; }); }
int64_t engine_silence(uint32_t host, uint64_t completed) { return guarded([&] { return the->engine(host).silence_ns(completed); }); }
// Begun, completed, generation, calls, policy; frozen, halted, broken, recovering, pause requested and replaying, a bit each.
int64_t engine_fields(uint32_t host, int64_t* into) {
  return guarded([&] {
    Engine& e = the->engine(host);
    into[0] = static_cast<int64_t>(e.begun());
    into[1] = static_cast<int64_t>(e.completed());
    into[2] = e.generation();
    into[3] = static_cast<int64_t>(e.calls());
    into[4] = e.policy();
    return e.frozen() | e.is_halted() << 1 | e.broken() << 2 | e.recovering() << 3 | e.pause_requested() << 4 |
           e.is_replaying() << 5;
  });
}
// Refused packets, retransmissions, RESULTs, packet numbers, the loss timer.
int64_t engine_stats(uint32_t host, int64_t* into) {
  return guarded([&] {
    const EngineStats s = the->engine(host).stats();
    into[0] = static_cast<int64_t>(the->engine(host).port_counters().refused);
    into[1] = static_cast<int64_t>(s.retransmissions);
    into[2] = static_cast<int64_t>(s.results);
    into[3] = static_cast<int64_t>(s.packet_numbers);
    into[4] = s.rto_ns;
    return 0;
  });
}
int64_t engine_report(uint32_t host, uint64_t* into) {
  return guarded([&] {
    const Report report = report_of(the->engine(host));
    std::copy(report.begin(), report.end(), into);
    return report.size();
  });
}

}  // extern "C"
