// Python bindings of the worker engine. Every call that can block releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>

#include "switchagg/native/shared/dpdk_device.h"
#include "switchagg/native/shared/frame_host.h"
#include "switchagg/native/shared/kernel_choice.h"
#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/shared/xdp_device.h"
#include "switchagg/native/worker/engine.h"
#include "switchagg/native/worker/heartbeat.h"
#include "switchagg/native/worker/io_bench.h"
#include "switchagg/native/worker/link_port.h"
#include "switchagg/native/worker/loop_bench.h"
#include "switchagg/native/worker/slots_port.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace switchagg;

namespace switchagg {
void bind_caller(nb::module_& m);
void bind_compress(nb::module_& m);
void bind_sparse_rows(nb::module_& m);
}

namespace {

// A bound socket before an engine takes it.
class Socket {
 public:
  Socket(uint32_t ip, uint16_t port, int receive_buffer, bool offload) {
    port_ = std::make_unique<UdpPort>(UdpOptions{{ip, port}, receive_buffer, 4 << 20, offload});
    local = port_->local();
    receive_buffer_bytes = port_->receive_buffer();
    gso = port_->gso();
    gro = port_->gro();
  }
  // An endpoint on the process's DPDK ports, without a socket of the kernel. Throws std::system_error.
  Socket(uint32_t ip, const DpdkSettings& settings) : gso(false), gro(false), host_(dpdk_hosts(ip, settings, 1)[0]) {
    local = {ip, host_->free_port()};
    receive_buffer_bytes = static_cast<int>(host_->receive_bytes());
  }
  // From now on take() returns a port through AF_XDP on the interface that has the socket's address. Throws std::system_error
  // that says what was refused; the socket is then as before.
  std::string use_xdp() {
    std::string description;
    host_ = xdp_hosts(local.ip, 1, description)[0];
    receive_buffer_bytes = static_cast<int>(host_->receive_bytes());
    return description;
  }
  // Returns a port to the switch: through shared memory if the admission names a link, there in
  // shared slots if it says so, or else by AF_XDP or UDP.
  std::unique_ptr<Port> take(const Admission& admission) {
    if (!port_ && !host_) throw nb::value_error("this socket is closed or belongs to an engine already");
    if (admission.link.empty()) {
      if (host_) {
        if (port_) port_->connect(admission.switch_at);
        auto made = std::make_unique<DatagramPort>(host_, port_, local, admission.switch_at, wire::kHeaderBytes + 4 * admission.words);
        host_.reset();
        return made;
      }
      port_->connect(admission.switch_at);
      port_->cut_at_blocks(admission.threads > 1 ? wire::kBlockSlots : 0);
      return std::move(port_);
    }
    if (admission.shared_slots)
      return std::make_unique<SlotsPort>(port_, admission.link, admission.switch_at, admission.job, admission.token,
                                         admission.slots, admission.words);
    link::Shape shape;
    shape.packet_bytes = wire::kHeaderBytes + 4 * admission.words;
    // Room for all packets in flight and some retransmissions; a full ring drops packets, as a full socket buffer does.
    shape.entries = std::max(link::Shape::kMinEntries, 4 * admission.slots);
    shape.memory_bytes = uint64_t{admission.slots} * shape.packet_bytes;
    return std::make_unique<LinkPort>(port_, admission.link, admission.switch_at, admission.job, admission.token, shape);
  }
  // Sends to `to`, or without one receives, as fast as it goes; the socket is closed then. See io_bench.h.
  IoFigures measure(std::optional<Endpoint> to, uint32_t bytes, uint32_t batch, int64_t ns, bool bare) {
    auto host = std::move(host_);
    if (to) return send_for(std::move(port_), host, local, *to, bytes, batch, ns, bare);
    return receive_for(std::move(port_), host, local, ns, bare);
  }
  void use_udp() { host_.reset(); }
  void close() {
    port_.reset();
    host_.reset();
  }

  Endpoint local;
  int receive_buffer_bytes;
  bool gso, gro;

 private:
  std::unique_ptr<UdpPort> port_;    // nullptr on DPDK
  std::shared_ptr<FrameHost> host_;  // nullptr on UDP
};

// Of stripes 1 and up: their sockets and admissions.
using More = std::vector<std::pair<Socket*, Admission>>;

std::vector<Attachment> taken(const More& more) {
  std::vector<Attachment> found;
  for (const auto& [socket, admission] : more) found.push_back({socket->take(admission), admission});
  return found;
}

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Plan and stream of one call, as one segment and without a network, for tests against the reference implementation.
class Codec {
 public:
  Codec(const Call& call, uint32_t call_number, uint32_t words) : call_(call), words_(words) {
    call_.call_number = call_number;
    call_.resolve_disjoint();
    header_has_plan_ = kPlanHeaderWords + call_.rest_words() <= words;
    plan_ = std::make_unique<Plan>(call_, words, header_has_plan_);
    while (!plan_->scan(1 << 20)) {
    }
  }
  uint64_t plan_packets() const { return header_has_plan_ ? 1 : 1 + plan_->packets(); }
  nb::object plan_packet(uint64_t p) const {
    return packet([&](uint8_t* out) {
      if (header_has_plan_ || p > 0) return plan_->encode(header_has_plan_ ? p : p - 1, out);
      PlanHeader::encode(call_, words_, out);
      return true;
    });
  }
  void plan_result(uint64_t p, std::optional<nb::bytes> payload) {
    if (header_has_plan_ || p > 0) plan_->decode(header_has_plan_ ? p : p - 1, checked(payload));
  }
  // Begins the next step after the plan; its packets, or None if there is no other.
  std::optional<uint64_t> next_step() {
    if (step_ == Step::Kind::exponents) sequence_->agree();
    if (!sequence_) sequence_ = std::make_unique<Sequence>(call_, plan_.get(), words_);
    if (step_ == (call_.bits == kBounded ? Step::Kind::rest : Step::Kind::stream)) return std::nullopt;
    step_ = kind_of_step(call_, ++steps_);
    if (step_ == Step::Kind::exponents) return sequence_->packets();
    if (step_ == Step::Kind::marks) {
      marks_ = std::make_unique<Marks>(call_, *sequence_, words_);
      return marks_->packets();
    }
    if (step_ == Step::Kind::ranges) return stream_->refinement().open_ranges();
    if (step_ == Step::Kind::rest) return stream_->refinement().open_rest();
    stream_ = std::make_unique<Stream>(call_, plan_.get(), *sequence_, marks_.get(), words_);
    return stream_->packets();
  }
  bool is_or(uint64_t p) const { return step_ == Step::Kind::stream ? stream_->is_or(p) : step_ != Step::Kind::rest; }
  nb::object encode(uint64_t p) {
    return packet([&](uint8_t* out) {
      if (step_ == Step::Kind::exponents) return sequence_->encode(p, out);
      if (step_ == Step::Kind::marks) return marks_->encode(p, out);
      if (step_ == Step::Kind::ranges) return stream_->refinement().encode_ranges(p, out);
      if (step_ == Step::Kind::rest) return stream_->refinement().encode_rest(p, out);
      return stream_->encode(p, out);
    });
  }
  void decode(uint64_t p, std::optional<nb::bytes> payload) {
    const uint8_t* words = checked(payload);
    if (step_ == Step::Kind::exponents) return sequence_->decode(p, words);
    if (step_ == Step::Kind::marks) return marks_->decode(p, words);
    if (step_ == Step::Kind::ranges) return stream_->refinement().decode_ranges(p, words);
    if (step_ == Step::Kind::rest) return stream_->refinement().decode_rest(p, words);
    stream_->decode(p, words);
  }
  // The rank that reads a packet's sums, where the step is the stream and one does.
  std::optional<uint32_t> reader(uint64_t p) const {
    const uint32_t reads = step_ == Step::Kind::stream ? stream_->reader(p) : 0;
    return reads ? std::optional(reads - 1) : std::nullopt;
  }
  void finish() { stream_->finish(); }

 private:
  template <typename F>
  nb::object packet(F&& encode) const {
    std::vector<uint8_t> out(4 * static_cast<size_t>(words_));
    if (!encode(out.data())) return nb::none();
    return nb::bytes(out.data(), out.size());
  }
  const uint8_t* checked(const std::optional<nb::bytes>& payload) const {
    if (payload && payload->size() != 4 * static_cast<size_t>(words_)) throw nb::value_error("payload must be exactly K words");
    return payload ? static_cast<const uint8_t*>(payload->data()) : nullptr;
  }
  Call call_;
  uint32_t words_;
  bool header_has_plan_ = false;
  Step::Kind step_ = Step::Kind::plan;
  uint32_t steps_ = 0;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<Marks> marks_;
  std::unique_ptr<Stream> stream_;
};

// Calls `function`; a std::system_error becomes an OSError.
template <typename Function>
auto with_os_errors(Function&& function) {
  try {
    return function();
  } catch (const std::system_error& error) {
    const nb::object value = nb::module_::import_("builtins").attr("OSError")(error.code().value(), error.what());
    PyErr_SetObject(value.type().ptr(), value.ptr());
    throw nb::python_error();
  }
}

nb::dict stats_dict(Engine& engine) {
  const EngineStats s = engine.stats();
  const PortCounters p = engine.port_counters();
  const std::pair<const char*, int64_t> fields[] = {
      {"collectives", s.collectives}, {"packets_data", s.data_packets}, {"packets_skip", s.skip_packets},
      {"packets_sent", p.packets_out}, {"packets_received", p.packets_in}, {"bytes_sent", p.bytes_out},
      {"bytes_received", p.bytes_in}, {"send_calls", p.send_calls}, {"receive_calls", p.receive_calls},
      {"refused", p.refused}, {"send_errors", p.send_errors}, {"core_moves", p.core_moves}, {"retransmissions", s.retransmissions},
      {"results", s.results}, {"results_ignored", s.ignored}, {"results_damaged", s.damaged}, {"results_marked", s.marked}, {"blocks_total", s.blocks_total},
      {"exact_elements", s.exact_elements}, {"bounded_elements", s.bounded_elements},
      {"refined_elements", s.refined_elements}, {"blocks_own", s.blocks_own}, {"blocks_union", s.blocks_union}, {"completed", s.completed},
      {"elements", s.elements}, {"bytes_reduced", s.bytes_reduced}, {"positions", s.packet_numbers},
      {"plan_ns", s.plan_ns}, {"busy_ns", s.busy_ns}, {"rtt_ns", s.srtt_ns}, {"rto_ns", s.rto_ns}, {"cwnd", s.cwnd},
      {"scan_ns", s.scan_ns}, {"quantize_ns", s.quantize_ns}, {"send_ns", s.send_ns}, {"receive_ns", s.receive_ns},
      {"wait_ns", s.wait_ns}, {"decode_ns", s.decode_ns}, {"policy_collectives", s.policy_collectives},
      {"policy_elements", s.policy_elements}, {"policy_ns", s.policy_ns}, {"policy_word", s.policy_word},
      {"policy_lanes", s.policy_lanes}, {"density_groups", s.density.groups}, {"density_summed", s.density.summed},
  };
  nb::dict d;
  for (const auto& [name, value] : fields) d[name] = value;
  for (uint32_t i = 0; i < DensityCounts::kSizes; ++i) {
    const std::string size = std::to_string(16u << i);
    d[("density_own_" + size).c_str()] = s.density.own[i];
    d[("density_sum_" + size).c_str()] = s.density.sum[i];
  }
  return d;
}

Cookie cookie_of(const nb::bytes& bytes) {
  Cookie cookie;
  if (bytes.size() != cookie.size()) throw nb::value_error("a cookie has 16 bytes");
  std::copy_n(reinterpret_cast<const uint8_t*>(bytes.c_str()), cookie.size(), cookie.begin());
  return cookie;
}

}  // namespace

NB_MODULE(_native, m) {
  // A daemon thread may hold an engine when a process ends, which no user can help.
  nb::set_leak_warnings(false);
  m.doc() = "The worker's engine; see switchagg/native/worker/engine.h.";
  m.attr("kernels") = kKernelLevels[chosen_level()];
  bind_compress(m);
  bind_sparse_rows(m);

  nb::class_<Socket>(m, "Socket")
      .def(
          "__init__",
          [](Socket* self, uint32_t ip, uint16_t port, int receive_buffer, bool offload) {
            with_os_errors([&] { new (self) Socket(ip, port, receive_buffer, offload); });
          },
          "ip"_a, "port"_a, "receive_buffer"_a, "offload"_a)
      .def_prop_ro("ip", [](const Socket& s) { return s.local.ip; })
      .def_prop_ro("port", [](const Socket& s) { return s.local.port; })
      .def_ro("receive_buffer", &Socket::receive_buffer_bytes)
      .def_ro("gso", &Socket::gso)
      .def_ro("gro", &Socket::gro)
      .def_static(
          "on_dpdk",
          [](uint32_t ip, const std::vector<std::vector<int64_t>>& ports, uint32_t mtu, uint64_t pool,
             const std::vector<int64_t>& functions, uint32_t receive_frames, bool poll) {
            return with_os_errors([&] {
              return new Socket(ip, dpdk_settings(ports, mtu, pool, functions, receive_frames, poll));
            });
          },
          "ip"_a, nb::kw_only(), "ports"_a, "mtu"_a, "pool"_a, "functions"_a, "receive_frames"_a, "poll"_a,
          nb::rv_policy::take_ownership)
      .def("use_xdp",
           [](Socket& self) {
             return with_os_errors([&] {
               nb::gil_scoped_release release;
               return self.use_xdp();
             });
           })
      .def(
          "measure",
          [](Socket& self, std::optional<std::tuple<uint32_t, uint16_t>> to, uint32_t bytes, uint32_t batch, int64_t ns, bool bare) {
            std::optional<Endpoint> peer;
            if (to) peer = Endpoint{std::get<0>(*to), std::get<1>(*to)};
            const IoFigures f = with_os_errors([&] {
              nb::gil_scoped_release release;
              return self.measure(peer, bytes, batch, ns, bare);
            });
            return std::make_tuple(f.packets, f.bytes, f.wall_ns, f.processor_ns);
          },
          "to"_a.none(), "bytes"_a, "batch"_a, "ns"_a, "bare"_a)
      .def("use_udp", &Socket::use_udp)
      .def("close", &Socket::close);

  nb::class_<LoopBench>(m, "LoopBench")
      .def(nb::init<uint64_t, size_t>(), "seed"_a, "elements"_a)
      .def_prop_ro_static("loops",
                          [](nb::handle) {
                            std::vector<std::tuple<const char*, double>> all;
                            for (const LoopBench::Loop& each : LoopBench::loops()) all.emplace_back(each.name, each.bytes / 16.0);
                            return all;
                          })
      .def_prop_ro_static("levels",
                          [](nb::handle) {
                            return std::vector<std::string>(kKernelLevels, kKernelLevels + LoopBench::levels());
                          })
      .def("measure", &LoopBench::measure, "loop"_a, "level"_a, "runs"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("digest", &LoopBench::digest, "loop"_a, "level"_a, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Call>(m, "Call")
      .def(
          "__init__",
          [](Call* self, int kind, int op, int dtype, uint8_t bits, uint8_t root, bool sparse, uint32_t block,
             uint64_t count, uint64_t fingerprint_count, uint32_t shape_crc, uint32_t workers, uint32_t rank,
             uint32_t policy, uintptr_t in, uint64_t in_begin, uint64_t in_end, uintptr_t out, uint64_t out_begin,
             uint64_t out_end, uintptr_t mask, bool zero_fill, bool auto_zeros, bool auto_block, uint8_t auto_lanes,
             uintptr_t memory, uintptr_t union_out, uint64_t part, uint32_t reader, uintptr_t owner_ends) {
            if (bits != kExact && bits != kBounded && bits != 8 && bits != 16 && bits != 32 && bits != 64)
              throw nb::value_error("bits: 8, 16, 32 or 64; 0 for exact sums, 1 for sums within the bound");
            if (dtype < 0 || dtype > static_cast<int>(DType::raw)) throw nb::value_error("there is no such dtype");
            new (self) Call{.kind = static_cast<Kind>(kind), .op = static_cast<ReduceOp>(op),
                            .dtype = static_cast<DType>(dtype), .bits = bits, .root = root, .sparse = sparse,
                            .block = block, .count = count, .fingerprint_count = fingerprint_count,
                            .shape_crc = shape_crc, .workers = workers, .rank = rank, .part = part,
                            .reader = reader, .owner_ends = pointer<const uint64_t>(owner_ends), .policy = policy,
                            .auto_zeros = auto_zeros, .auto_block = auto_block, .auto_lanes = auto_lanes,
                            .in = pointer<const uint8_t>(in), .in_begin = in_begin, .in_end = in_end,
                            .out = pointer<uint8_t>(out), .out_begin = out_begin, .out_end = out_end,
                            .mask = pointer<const uint32_t>(mask), .memory = pointer<float>(memory),
                            .union_out = pointer<uint32_t>(union_out), .zero_fill = zero_fill};
          },
          "kind"_a, "op"_a, "dtype"_a, "bits"_a, "root"_a = 0, "sparse"_a = true, "block"_a = 64, "count"_a = 0,
          "fingerprint_count"_a = 0, "shape_crc"_a = 0, "workers"_a = 1, "rank"_a = 0, "policy"_a = 0, "input"_a = 0,
          "in_begin"_a = 0, "in_end"_a = 0, "output"_a = 0, "out_begin"_a = 0, "out_end"_a = 0, "mask"_a = 0,
          "zero_fill"_a = false, "auto_zeros"_a = false, "auto_block"_a = false, "auto_lanes"_a = 0, "memory"_a = 0,
          "union_out"_a = 0, "part"_a = 0, "reader"_a = 0, "owner_ends"_a = 0)
      .def_rw("nontemporal", &Call::nontemporal)
      .def_rw("checked", &Call::checked)
      .def_rw("directed", &Call::directed);

  nb::class_<Collective>(m, "Collective")
      .def_prop_ro("status", [](const Collective& c) { return static_cast<int>(c.status.load()); })
      .def_prop_ro("difference", [](const Collective& c) { return std::vector<uint32_t>(c.difference, c.difference + 5); })
      .def_prop_ro("policy", [](const Collective& c) { return c.policy; })
      .def_prop_ro("call_number", [](const Collective& c) { return c.call.call_number; })
      .def_prop_ro("generation", [](const Collective& c) { return c.generation.load(); })
      .def_prop_ro("submitted_at", [](const Collective& c) { return c.submitted_at.load(); })
      .def_prop_ro("begun_at", [](const Collective& c) { return c.begun_at.load(); })
      .def_prop_ro("opened_at", [](const Collective& c) { return c.opened_at.load(); })
      .def_prop_ro("again",
                   [](const Collective& c) {
                     std::vector<std::tuple<int64_t, uint64_t>> out;
                     if (c.status.load() != Status::pending)
                       for (const auto& each : c.again) out.emplace_back(each.at, each.packets);
                     return out;
                   })
      .def_prop_ro("ended_at", [](const Collective& c) { return c.ended_at.load(); })
      .def_prop_ro("resolved",
                   [](const Collective& c) { return std::make_tuple(c.call.sparse, c.call.block, int{c.call.bits}); })
      .def_prop_ro("packets", [](const Collective& c) { return c.packets; })
      .def_prop_ro("results", [](const Collective& c) { return c.results; });

  nb::class_<Admission>(m, "Admission")
      .def(
          "__init__",
          [](Admission* self, uint32_t switch_ip, uint16_t switch_port, uint16_t job, uint32_t token,
             uint32_t result_token, uint32_t base, uint32_t slots, uint32_t words, uint32_t first_seq, uint32_t rank,
             uint32_t workers, uint32_t window_limit, const std::string& link, uint32_t policy,
             std::vector<uint16_t> receivers, bool shared_slots, uint32_t threads, uint32_t weight) {
            if (!receivers.empty() && receivers.size() != workers) throw nb::value_error("receivers: one for each rank, or none");
            if (weight < 1 || weight > kMostWeight)
              throw nb::value_error(("weight is " + std::to_string(weight) + "; accepted: 1 to " + std::to_string(kMostWeight)).c_str());
            new (self) Admission{job, token, result_token, base, slots, words, first_seq, rank, workers,
                                  {switch_ip, switch_port}, window_limit, policy, link, std::move(receivers), shared_slots, threads, weight};
          },
          "switch_ip"_a, "switch_port"_a, "job"_a, "token"_a, "result_token"_a, "base"_a, "slots"_a, "words"_a,
          "first_seq"_a, "rank"_a, "workers"_a, "window_limit"_a, "link"_a = "", "policy"_a = 0,
          "receivers"_a = std::vector<uint16_t>(), "shared_slots"_a = false,
          "threads"_a = 1, "weight"_a = kMostWeight);

  nb::class_<Engine>(m, "Engine")
      .def(
          "__init__",
          [](Engine* self, Socket& socket, const Admission& admission, bool checked, const nb::bytearray& secret, const More& more,
             bool shared_links) {
            const auto* first = static_cast<const uint8_t*>(secret.data());
            std::vector<uint8_t> copy(first, first + secret.size());  // the only one; the engine wipes it
            with_os_errors([&] {
              nb::gil_scoped_release release;  // a switch may be slow to answer
              if (!copy.empty()) require_crypto();
              new (self) Engine(socket.take(admission), admission, {.checked = checked, .shared_links = shared_links, .secret = std::move(copy)},
                                taken(more));
            });
          },
          "socket"_a, "admission"_a, "checked"_a = false, "secret"_a = nb::bytearray("", 0), "more"_a = More(),
          "shared_links"_a = false)
      .def(
          "submit",
          [](Engine& self, const Call& call, int64_t timeout_ns, bool background, uint32_t generation) {
            const bool whole = call.in_begin == 0 && call.out_begin == 0 && call.in_end == call.count && call.out_end == call.count;
            if (call.kind == Kind::allreduce && !whole) throw nb::value_error("an all-reduce is of all elements");
            auto work = std::make_shared<Collective>();
            work->call = call;
            nb::gil_scoped_release release;
            return self.submit(work, timeout_ns, background, generation) ? work : nullptr;
          },
          "call"_a, "timeout_ns"_a, "background"_a, "generation"_a = 0)
      .def(
          "wait",
          [](Engine& self, Collective& work, int64_t slice_ns) {
            nb::gil_scoped_release release;
            return static_cast<int>(self.wait(work, slice_ns));
          },
          "work"_a, "slice_ns"_a)
      .def("freeze", &Engine::freeze, nb::call_guard<nb::gil_scoped_release>())
      .def("finish", &Engine::finish, "complete_to"_a, "slice_ns"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "resume",
          [](Engine& self, Socket& socket, const Admission& admission, bool lost, const More& more) {
            return with_os_errors([&] {
              nb::gil_scoped_release release;
              return self.resume(socket.take(admission), admission, lost, taken(more));
            });
          },
          "socket"_a, "admission"_a, "lost"_a = false, "more"_a = More())
      .def("suspend", &Engine::suspend, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "move",
          [](Engine& self, Socket& socket, const Admission& admission, uint64_t first, uint32_t stripe, bool more) {
            return with_os_errors([&] {
              nb::gil_scoped_release release;
              return self.move(socket.take(admission), admission, first, stripe, more);
            });
          },
          "socket"_a, "admission"_a, "first"_a, "stripe"_a = 0, "more"_a = false)
      .def_prop_ro("weights", &Engine::weights, nb::call_guard<nb::gil_scoped_release>())
      .def("dealt", &Engine::dealt, "packet_number"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("refused", &Engine::refused, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("late", &Engine::late, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("recovering", &Engine::recovering, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("replaying", &Engine::is_replaying, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("damage", &Engine::damage, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("unhealed", &Engine::unhealed, nb::call_guard<nb::gil_scoped_release>())
      .def("request_pause", &Engine::request_pause)
      .def_prop_ro("pause_requested", &Engine::pause_requested)
      .def("set_pause_eventfd", &Engine::set_pause_eventfd, "descriptor"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("fail_from", &Engine::fail_from, "begun"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("begun", &Engine::begun, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("completed", &Engine::completed, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("frozen", &Engine::frozen)
      .def_prop_ro("halted", &Engine::is_halted, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("generation", &Engine::generation)
      .def("abort", &Engine::abort, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &Engine::abandon)
      .def_prop_ro("broken", &Engine::broken)
      .def_prop_ro("calls", &Engine::calls)
      .def_prop_ro("policy", &Engine::policy)
      .def("set_policy", &Engine::set_policy, "word"_a)
      .def("silence_ns", &Engine::silence_ns, "completed"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("probe", &Engine::probe, "timeout_ns"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("stats", &stats_dict);

  bind_caller(m);

  nb::class_<HeartbeatSender>(m, "HeartbeatSender")
      .def(
          "__init__",
          [](HeartbeatSender* self, Engine& engine) { with_os_errors([&] { new (self) HeartbeatSender(engine); }); },
          "engine"_a, nb::keep_alive<1, 2>())
      .def(
          "start",
          [](HeartbeatSender& self, uint32_t ip, uint16_t port, const nb::bytes& cookie, int64_t interval_ns) {
            const Cookie bytes = cookie_of(cookie);
            with_os_errors([&] {
              nb::gil_scoped_release release;
              self.start({ip, port}, bytes, interval_ns);
            });
          },
          "ip"_a, "port"_a, "cookie"_a, "interval_ns"_a)
      .def("close", &HeartbeatSender::close, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &HeartbeatSender::abandon)
      .def_prop_ro("sent", &HeartbeatSender::sent, nb::call_guard<nb::gil_scoped_release>());

  m.def(
      "ip_number",
      [](const std::string& text) {
        const std::optional<uint32_t> ip = with_os_errors([&] { return ip_of(text); });
        if (!ip) throw nb::value_error(("'" + text + "' is no IPv4 or IPv6 address of a host").c_str());
        return *ip;
      },
      "text"_a);
  m.def(
      "heartbeat",
      [](const nb::bytes& cookie, uint64_t sequence, const std::vector<uint64_t>& report) {
        Report fields{};
        if (report.size() != fields.size()) throw nb::value_error("a report has exactly its fields");
        std::copy(report.begin(), report.end(), fields.begin());
        const auto packet = heartbeat(cookie_of(cookie), sequence, fields);
        return nb::bytes(packet.data(), packet.size());
      },
      "cookie"_a, "sequence"_a, "report"_a);

  nb::class_<Codec>(m, "Codec")
      .def(nb::init<const Call&, uint32_t, uint32_t>(), "call"_a, "call_number"_a, "words"_a)
      .def_prop_ro("plan_packets", &Codec::plan_packets)
      .def("plan_packet", &Codec::plan_packet, "packet"_a)
      .def("plan_result", &Codec::plan_result, "packet"_a, "payload"_a.none())
      .def("next_step", &Codec::next_step)
      .def("is_or", &Codec::is_or, "packet"_a)
      .def("reader", &Codec::reader, "packet"_a)
      .def("encode", &Codec::encode, "packet"_a)
      .def("decode", &Codec::decode, "packet"_a, "payload"_a.none())
      .def("finish", &Codec::finish);

  nb::class_<PacketCheck>(m, "PacketCheck")
      .def(nb::init<uint32_t, uint32_t, uint64_t>(), "words"_a, "workers"_a, "nonce"_a)
      .def(
          "write",
          [](const PacketCheck& check, uint64_t packet_number, uint64_t digest, const nb::bytes& words) {
            std::vector<uint8_t> packet(words.size() + 4 * PacketCheck::kWords);
            std::copy_n(static_cast<const uint8_t*>(words.data()), words.size(), packet.begin());
            check.write(packet_number, {digest}, check.weighted(packet.data()), packet.data());
            return nb::bytes(packet.data(), packet.size());
          },
          "packet_number"_a, "digest"_a, "words"_a)
      .def(
          "holds",
          [](const PacketCheck& check, uint64_t packet_number, uint64_t digest, const nb::bytes& payload, bool all, bool wraps) {
            const std::optional<uint32_t> from = all ? std::optional(check.workers()) : std::nullopt;
            const uint8_t* const words = static_cast<const uint8_t*>(payload.data());
            return check.holds(packet_number, {digest}, check.weighted(words), words, from, wraps);
          },
          "packet_number"_a, "digest"_a, "payload"_a, "all"_a = false, "wraps"_a = false)
      .def(
          "extended",
          [](const PacketCheck& check, uint64_t before, const std::vector<uint32_t>& words) {
            return check.extended({before}, words)[0];
          },
          "before"_a, "words"_a);

  nb::class_<Seal>(m, "Seal")
      .def(
          "__init__",
          [](Seal* self, const nb::bytes& secret, const std::vector<nb::bytes>& nonces, uint32_t rank, uint32_t words) {
            std::vector<Nonce> all(nonces.size());
            for (size_t i = 0; i < all.size(); ++i) {
              if (nonces[i].size() != sizeof(Nonce)) throw nb::value_error("a nonce has 16 bytes");
              std::copy_n(static_cast<const uint8_t*>(nonces[i].data()), sizeof(Nonce), all[i].begin());
            }
            const auto* first = static_cast<const uint8_t*>(secret.data());
            require_crypto();
            new (self) Seal({first, secret.size()}, all, rank, words);
          },
          "secret"_a, "nonces"_a, "rank"_a, "words"_a)
      .def("secret_words", &Seal::secret_words, "count"_a)
      .def(
          "sealed",  // with check words
          [](Seal& seal, uint64_t packet_number, std::array<uint64_t, 2> digest, uint32_t workers, const nb::bytes& words, bool alone) {
            const uint32_t count = static_cast<uint32_t>(words.size() / 4);
            std::vector<uint8_t> packet(words.size() + 4 * PacketCheck::kSealedWords);
            std::copy_n(static_cast<const uint8_t*>(words.data()), words.size(), packet.begin());
            const PacketCheck check(count, workers, seal.secret_words(PacketCheck::secret_words(count)));
            seal.add_pad(packet_number, alone, check, digest, packet.data(), packet.data());
            return nb::bytes(packet.data(), packet.size());
          },
          "packet_number"_a, "digest"_a, "workers"_a, "words"_a, "alone"_a = false);

  nb::class_<Deal>(m, "Deal")
      .def(nb::init<std::vector<uint32_t>, uint64_t>(), "weights"_a, "kept"_a)
      .def_prop_ro("weights", &Deal::weights)
      .def(
          "change", [](Deal& d, uint64_t first, uint32_t stripe, uint32_t weight) { d.change(first, {stripe, weight}); }, "first"_a,
          "stripe"_a, "weight"_a)
      .def(
          "place",
          [](const Deal& d, uint64_t packet_number) {
            const auto [stripe, number] = d.place(packet_number);
            return std::pair(stripe, number);
          },
          "packet_number"_a)
      .def("packet_number", &Deal::packet_number, "stripe"_a, "number"_a);

  nb::class_<StripeRates>(m, "StripeRates")
      .def(nb::init<std::vector<uint32_t>, uint64_t>(), "weights"_a, "period"_a)
      .def("begin", &StripeRates::begin, "now"_a, "packets"_a, "waits"_a = nb::none())
      .def("end", &StripeRates::end, "now"_a)
      .def(
          "next",
          [](StripeRates& r, const std::vector<uint32_t>& weights) {
            const auto [stripe, weight] = r.next(weights);
            return std::pair(stripe, weight);
          },
          "weights"_a);

  nb::class_<Window>(m, "Window")
      .def(
          "__init__",
          [](Window* self, uint32_t slots, uint32_t batch, uint32_t limit, bool shared, uint32_t threads, uint32_t first_seq) {
            new (self) Window(slots, batch, limit, 0, shared, threads, first_seq);
          },
          "slots"_a, "batch"_a, "limit"_a, "shared"_a = false, "threads"_a = 1, "first_seq"_a = 0)
      .def_prop_ro("base", &Window::base)
      .def_prop_ro("next", &Window::next)
      .def_prop_ro("cwnd", &Window::cwnd)
      .def_prop_ro("train", &Window::train)
      .def_prop_ro("srtt", &Window::srtt)
      .def_prop_ro("rttvar", &Window::rttvar)
      .def_prop_ro("rto", &Window::rto)
      .def_prop_ro("retransmissions", &Window::retransmissions)
      .def_prop_ro("outstanding", &Window::outstanding)
      .def("room", &Window::room)
      .def("sent", &Window::sent, "count"_a, "now"_a, "timed"_a = true)
      .def("on_result", &Window::on_result, "packet_number"_a)
      .def("on_ce", &Window::on_ce, "packet_number"_a, "now"_a)
      .def_static("stamp", &Window::stamp, "now"_a)
      .def("answered", &Window::answered, "stamp"_a, "is_new"_a, "now"_a)
      .def(
          "acknowledge",
          [](Window& w, const std::vector<uint64_t>& accepted, int64_t now) { w.acknowledge(accepted, now); },
          "accepted"_a, "now"_a)
      .def(
          "detect_lost",
          [](Window& w, int64_t now) {
            std::vector<uint64_t> out;
            w.detect_lost(now, out);
            return out;
          },
          "now"_a)
      .def("loss_timer", [](const Window& w) -> std::optional<int64_t> {
        const int64_t t = w.loss_timer();
        return t < 0 ? std::nullopt : std::optional<int64_t>(t);
      });
}
