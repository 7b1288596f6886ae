// Python's view of the worker engine. Every call that can block releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <system_error>

#include "switchagg/native/shared/udp_port.h"
#include "switchagg/native/worker/engine.h"
#include "switchagg/native/worker/heartbeat.h"
#include "switchagg/native/worker/link_port.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace switchagg;

namespace switchagg {
void bind_grid(nb::module_& m);
}

namespace {

// A bound socket that an engine has yet to take.
class Socket {
 public:
  Socket(uint32_t ip, uint16_t port, int receive_buffer, bool offload) {
    port_ = std::make_unique<UdpPort>(UdpOptions{{ip, port}, receive_buffer, 4 << 20, offload});
    local = port_->local();
    receive_buffer_bytes = port_->receive_buffer();
    gso = port_->gso();
    gro = port_->gro();
  }
  // A port to the switch at `peer`: through shared memory where `link` names its UNIX socket, by UDP where it is empty.
  std::unique_ptr<Port> take(Endpoint peer, const std::string& link, const Membership& membership) {
    if (!port_) throw nb::value_error("this socket is closed or belongs to an engine already");
    if (link.empty()) {
      port_->connect(peer);
      return std::move(port_);
    }
    link::Shape shape;
    shape.packet_bytes = wire::kHeaderBytes + 4 * membership.words;
    // Room for what may be under way and then some repeats: more than that is lost, as in a full socket buffer.
    shape.entries = std::max(link::Shape::kMinEntries, 4 * membership.slots);
    shape.memory_bytes = uint64_t{membership.slots} * shape.packet_bytes;
    return std::make_unique<LinkPort>(port_, link, peer, shape);
  }
  void close() { port_.reset(); }

  Endpoint local;
  int receive_buffer_bytes;
  bool gso, gro;

 private:
  std::unique_ptr<UdpPort> port_;
};

struct CallArguments {
  int kind, op, dtype, bits, root;
  bool sparse;
  uint32_t block;
  uint64_t count, fingerprint_count;
  uint32_t shape_crc, workers, rank, policy;
  uintptr_t in;
  uint64_t in_begin, in_end;
  uintptr_t out;
  uint64_t out_begin, out_end;
  uintptr_t mask;
  bool zero_fill;
  bool auto_zeros, auto_block;
  int auto_lanes;
  uintptr_t residual = 0, union_out = 0;
  bool feedback = false, nontemporal = false;

  Call call() const {
    Call c;
    c.kind = static_cast<Kind>(kind);
    c.op = static_cast<ReduceOp>(op);
    c.dtype = static_cast<DType>(dtype);
    c.bits = static_cast<uint8_t>(bits);
    c.root = static_cast<uint8_t>(root);
    c.sparse = sparse;
    c.block = block;
    c.count = count;
    c.fingerprint_count = fingerprint_count;
    c.shape_crc = shape_crc;
    c.workers = workers;
    c.rank = rank;
    c.policy = policy;
    c.in = reinterpret_cast<const uint8_t*>(in);
    c.in_begin = in_begin;
    c.in_end = in_end;
    c.out = reinterpret_cast<uint8_t*>(out);
    c.out_begin = out_begin;
    c.out_end = out_end;
    c.mask = reinterpret_cast<const uint32_t*>(mask);
    c.zero_fill = zero_fill;
    c.residual = reinterpret_cast<float*>(residual);
    c.feedback = feedback;
    c.nontemporal = nontemporal;
    c.union_out = reinterpret_cast<uint32_t*>(union_out);
    c.auto_zeros = auto_zeros;
    c.auto_block = auto_block;
    c.auto_lanes = static_cast<uint8_t>(auto_lanes);
    return c;
  }
};

// Plan and stream of one call, as one segment, without a network, for the tests that compare them with the Python twins.
class Codec {
 public:
  Codec(const CallArguments& arguments, uint32_t call_number, uint32_t words) : call_(arguments.call()), words_(words) {
    call_.call_number = call_number;
    header_has_plan_ = kPlanHeaderWords + call_.rest_words() <= words;
    plan_ = std::make_unique<Plan>(call_, words, header_has_plan_);
    while (!plan_->scan(1 << 20)) {
    }
  }
  uint64_t plan_packets() const { return header_has_plan_ ? 1 : 1 + plan_->packets(); }
  nb::object plan_packet(uint64_t p) const {
    std::vector<uint8_t> out(4 * static_cast<size_t>(words_));
    if (!header_has_plan_ && p == 0) {
      Opening::encode(call_, words_, out.data());
    } else if (!plan_->encode(header_has_plan_ ? p : p - 1, out.data())) {
      return nb::none();
    }
    return nb::bytes(out.data(), out.size());
  }
  void plan_result(uint64_t p, std::optional<nb::bytes> payload) {
    if (!header_has_plan_ && p == 0) return;
    plan_->decode(header_has_plan_ ? p : p - 1, payload ? reinterpret_cast<const uint8_t*>(check(*payload)) : nullptr);
  }
  uint64_t open() {
    stream_ = std::make_unique<Stream>(call_, plan_.get(), words_);
    return stream_->packets();
  }
  nb::object encode(uint64_t p) {
    std::vector<uint8_t> out(4 * static_cast<size_t>(words_));
    if (!stream_->encode(p, out.data())) return nb::none();
    return nb::bytes(out.data(), out.size());
  }
  void decode(uint64_t p, std::optional<nb::bytes> payload) {
    stream_->decode(p, payload ? reinterpret_cast<const uint8_t*>(check(*payload)) : nullptr);
  }
  void finish() { stream_->finish(); }

 private:
  const char* check(const nb::bytes& payload) const {
    if (payload.size() != 4 * static_cast<size_t>(words_)) throw nb::value_error("payload must be exactly K words");
    return payload.c_str();
  }
  Call call_;
  uint32_t words_;
  bool header_has_plan_ = false;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<Stream> stream_;
};

[[noreturn]] void raise_os_error(const std::system_error& error) {
  errno = error.code().value();
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

nb::dict stats_dict(Engine& engine) {
  const EngineStats s = engine.stats();
  const PortCounters p = engine.port_counters();
  nb::dict d;
  d["collectives"] = s.collectives;
  d["packets_data"] = s.data_packets;
  d["packets_skip"] = s.skip_packets;
  d["packets_sent"] = p.packets_out;
  d["packets_received"] = p.packets_in;
  d["bytes_sent"] = p.bytes_out;
  d["bytes_received"] = p.bytes_in;
  d["send_calls"] = p.send_calls;
  d["receive_calls"] = p.receive_calls;
  d["refused"] = p.refused;
  d["send_errors"] = p.send_errors;
  d["retransmissions"] = s.retransmissions;
  d["results"] = s.results;
  d["results_ignored"] = s.ignored;
  d["blocks_total"] = s.blocks_total;
  d["blocks_own"] = s.blocks_own;
  d["blocks_union"] = s.blocks_union;
  d["completed"] = s.completed;
  d["elements"] = s.elements;
  d["bytes_reduced"] = s.bytes_reduced;
  d["positions"] = s.positions;
  d["plan_ns"] = s.plan_ns;
  d["busy_ns"] = s.busy_ns;
  d["rtt_ns"] = s.srtt_ns;
  d["rto_ns"] = s.rto_ns;
  d["cwnd"] = s.cwnd;
  d["scan_ns"] = s.scan_ns;
  d["quantize_ns"] = s.quantize_ns;
  d["send_ns"] = s.send_ns;
  d["receive_ns"] = s.receive_ns;
  d["wait_ns"] = s.wait_ns;
  d["decode_ns"] = s.decode_ns;
  d["policy_collectives"] = s.policy_collectives;
  d["policy_elements"] = s.policy_elements;
  d["policy_ns"] = s.policy_ns;
  d["policy_word"] = s.policy_word;
  d["policy_lanes"] = s.policy_lanes;
  d["density_groups"] = s.density.groups;
  d["density_summed"] = s.density.summed;
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
  // A process may end without closing its sessions: a daemon thread then still holds an engine, which is no leak
  // that anybody could mend, and nothing to print at a user.
  nb::set_leak_warnings(false);
  m.doc() = "The worker's engine; see switchagg/native/worker/engine.h.";
  m.attr("kernels") = choose_codec_kernels().name;
  bind_grid(m);

  nb::class_<Socket>(m, "Socket")
      .def(
          "__init__",
          [](Socket* self, uint32_t ip, uint16_t port, int receive_buffer, bool offload) {
            try {
              new (self) Socket(ip, port, receive_buffer, offload);
            } catch (const std::system_error& e) {
              raise_os_error(e);
            }
          },
          "ip"_a, "port"_a, "receive_buffer"_a, "offload"_a)
      .def_prop_ro("ip", [](const Socket& s) { return s.local.ip; })
      .def_prop_ro("port", [](const Socket& s) { return s.local.port; })
      .def_ro("receive_buffer", &Socket::receive_buffer_bytes)
      .def_ro("gso", &Socket::gso)
      .def_ro("gro", &Socket::gro)
      .def("close", &Socket::close);

  nb::class_<CallArguments>(m, "Call")
      .def(
          "__init__",
          [](CallArguments* self, int kind, int op, int dtype, int bits, int root, bool sparse, uint32_t block,
             uint64_t count, uint64_t fingerprint_count, uint32_t shape_crc, uint32_t workers, uint32_t rank,
             uint32_t policy, uintptr_t in, uint64_t in_begin, uint64_t in_end, uintptr_t out, uint64_t out_begin,
             uint64_t out_end, uintptr_t mask, bool zero_fill, bool auto_zeros, bool auto_block, int auto_lanes) {
            new (self) CallArguments{kind,   op,       dtype,  bits, root,      sparse,  block, count,
                                     fingerprint_count, shape_crc, workers, rank, policy, in, in_begin, in_end,
                                     out,    out_begin, out_end, mask, zero_fill, auto_zeros, auto_block, auto_lanes};
          },
          "kind"_a, "op"_a, "dtype"_a, "bits"_a, "root"_a, "sparse"_a, "block"_a, "count"_a, "fingerprint_count"_a,
          "shape_crc"_a, "workers"_a, "rank"_a, "policy"_a, "input"_a, "in_begin"_a, "in_end"_a, "output"_a,
          "out_begin"_a, "out_end"_a, "mask"_a, "zero_fill"_a, "auto_zeros"_a = false, "auto_block"_a = false,
          "auto_lanes"_a = 0)
      .def_rw("residual", &CallArguments::residual)
      .def_rw("feedback", &CallArguments::feedback)
      .def_rw("nontemporal", &CallArguments::nontemporal)
      .def_rw("union_out", &CallArguments::union_out);

  nb::class_<Collective>(m, "Collective")
      .def_prop_ro("status", [](const Collective& c) { return static_cast<int>(c.status.load()); })
      .def_prop_ro("difference", [](const Collective& c) { return std::vector<uint32_t>(c.difference, c.difference + 5); })
      .def_prop_ro("policy", [](const Collective& c) { return c.policy; })
      .def_prop_ro("call_number", [](const Collective& c) { return c.call.call_number; })
      .def_prop_ro("generation", [](const Collective& c) { return c.generation.load(); })
      .def_prop_ro("resolved",
                   [](const Collective& c) { return std::make_tuple(c.call.sparse, c.call.block, int{c.call.bits}); })
      .def_prop_ro("packets", [](const Collective& c) { return c.packets; })
      .def_prop_ro("results", [](const Collective& c) { return c.results; });

  nb::class_<Engine>(m, "Engine")
      .def(
          "__init__",
          [](Engine* self, Socket& socket, uint32_t switch_ip, uint16_t switch_port, uint16_t job, uint32_t token,
             uint32_t result_token, uint32_t base, uint32_t slots, uint32_t words, uint32_t first_seq, uint32_t rank,
             uint32_t workers, uint32_t window_limit, const std::string& link, uint32_t policy) {
            Membership membership{job,   token,     result_token, base, slots, words, first_seq, rank, workers,
                                  {switch_ip, switch_port}, window_limit, policy};
            try {
              nb::gil_scoped_release release;  // a switch may be slow to answer
              new (self) Engine(socket.take(membership.switch_at, link, membership), membership);
            } catch (const std::system_error& e) {
              raise_os_error(e);
            }
          },
          "socket"_a, "switch_ip"_a, "switch_port"_a, "job"_a, "token"_a, "result_token"_a, "base"_a, "slots"_a,
          "words"_a, "first_seq"_a, "rank"_a, "workers"_a, "window_limit"_a, "link"_a = "", "policy"_a = 0)
      .def(
          "submit",
          [](Engine& self, const CallArguments& call, int64_t timeout_ns, bool background, uint32_t generation) {
            auto work = std::make_shared<Collective>();
            work->call = call.call();
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
          [](Engine& self, Socket& socket, uint32_t switch_ip, uint16_t switch_port, uint16_t job, uint32_t token,
             uint32_t result_token, uint32_t base, uint32_t slots, uint32_t words, uint32_t first_seq, uint32_t rank,
             uint32_t workers, uint32_t window_limit, const std::string& link, uint32_t policy, bool lost) {
            const Membership membership{job,   token,     result_token, base, slots, words, first_seq, rank, workers,
                                        {switch_ip, switch_port}, window_limit, policy};
            try {
              nb::gil_scoped_release release;
              return self.resume(socket.take(membership.switch_at, link, membership), membership, lost);
            } catch (const std::system_error& e) {
              raise_os_error(e);
            }
          },
          "socket"_a, "switch_ip"_a, "switch_port"_a, "job"_a, "token"_a, "result_token"_a, "base"_a, "slots"_a,
          "words"_a, "first_seq"_a, "rank"_a, "workers"_a, "window_limit"_a, "link"_a = "", "policy"_a = 0,
          "lost"_a = false)
      .def("request_pause", &Engine::request_pause)
      .def_prop_ro("pause_requested", &Engine::pause_requested)
      .def("set_pause_eventfd", &Engine::set_pause_eventfd, "descriptor"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("fail_from", &Engine::fail_from, "begun"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("begun", &Engine::begun, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("frozen", &Engine::frozen)
      .def_prop_ro("halted", &Engine::is_halted, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("generation", &Engine::generation)
      .def("abort", &Engine::abort, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &Engine::abandon)
      .def_prop_ro("broken", &Engine::broken)
      .def_prop_ro("calls", &Engine::next_position)
      .def_prop_ro("policy", &Engine::policy)
      .def("set_policy", &Engine::set_policy, "word"_a)
      .def_prop_ro("silence_ns", &Engine::silence_ns)
      .def("stats", &stats_dict);

  nb::class_<HeartbeatSender>(m, "HeartbeatSender")
      .def(
          "__init__",
          [](HeartbeatSender* self, Engine& engine) {
            try {
              new (self) HeartbeatSender(engine);
            } catch (const std::system_error& e) {
              raise_os_error(e);
            }
          },
          "engine"_a, nb::keep_alive<1, 2>())
      .def(
          "start",
          [](HeartbeatSender& self, uint32_t ip, uint16_t port, const nb::bytes& cookie, int64_t interval_ns) {
            const Cookie bytes = cookie_of(cookie);
            nb::gil_scoped_release release;
            self.start({ip, port}, bytes, interval_ns);
          },
          "ip"_a, "port"_a, "cookie"_a, "interval_ns"_a)
      .def("close", &HeartbeatSender::close, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &HeartbeatSender::abandon)
      .def_prop_ro("sent", &HeartbeatSender::sent, nb::call_guard<nb::gil_scoped_release>());

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
      .def(nb::init<const CallArguments&, uint32_t, uint32_t>(), "call"_a, "call_number"_a, "words"_a)
      .def_prop_ro("plan_packets", &Codec::plan_packets)
      .def("plan_packet", &Codec::plan_packet, "packet"_a)
      .def("plan_result", &Codec::plan_result, "packet"_a, "payload"_a.none())
      .def("open", &Codec::open)
      .def("encode", &Codec::encode, "packet"_a)
      .def("decode", &Codec::decode, "packet"_a, "payload"_a.none())
      .def("finish", &Codec::finish);

  nb::class_<Window>(m, "Window")
      .def(nb::init<uint32_t, uint32_t, uint32_t>(), "slots"_a, "batch"_a, "limit"_a)
      .def_prop_ro("base", &Window::base)
      .def_prop_ro("next", &Window::next)
      .def_prop_ro("cwnd", &Window::cwnd)
      .def_prop_ro("srtt", &Window::srtt)
      .def_prop_ro("rttvar", &Window::rttvar)
      .def_prop_ro("rto", &Window::rto)
      .def_prop_ro("retransmissions", &Window::retransmissions)
      .def_prop_ro("outstanding", &Window::outstanding)
      .def("room", &Window::room)
      .def("sent", &Window::sent, "count"_a, "now"_a, "timed"_a = true)
      .def("on_result", &Window::on_result, "packet_number"_a)
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
