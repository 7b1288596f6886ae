// The worker's engine: RESULTs of any bytes between those of its switch, and a switch whose RESULTs hold any words.
//
// With packets of strangers only, the collective ends with the right sums. With a hostile switch it ends somehow.
#include <algorithm>
#include <memory>
#include <vector>

#include "switchagg/native/worker/engine.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace switchagg;

constexpr uint32_t kResultToken = 0xAA;

int64_t virtual_ns;  // timers do not take their time here

// A switch for two workers that call the same: sums are twice this worker's words.
class FalseSwitch : public Port {
 public:
  FalseSwitch(fuzz::Input& input, bool hostile) : input_(input), hostile_(hostile) {}

  bool wait(int64_t) override { return true; }
  void receive(std::vector<Received>& into) override {
    shown_ = std::move(waiting_);
    waiting_.clear();
    for (const auto& packet : shown_)
      into.push_back(Received::whole(packet.data(), static_cast<uint32_t>(packet.size()), {}));
  }
  void send(std::span<const Endpoint>, std::span<const Segment> segments) override {
    for (const Segment& segment : segments) {
      std::vector<uint8_t> packet(segment.data, segment.data + segment.size);
      wire::Header header = wire::Header::parse(packet.data());
      const bool sum = header.op == static_cast<uint8_t>(wire::Op::SUM);
      header.op = static_cast<uint8_t>(wire::Op::RESULT);
      header.token = kResultToken;
      for (size_t at = wire::kHeaderBytes; sum && at + 4 <= packet.size(); at += 4)
        wire::store32(&packet[at], 2 * wire::load32(&packet[at]));
      if (input_.rarely()) waiting_.push_back(stranger(header, packet));
      if (hostile_) {
        if (input_.rarely() && header.flags & wire::kFlagPayload) {
          header.flags = 0;
          packet.resize(wire::kHeaderBytes);
        } else if (input_.rarely() && !(header.flags & wire::kFlagPayload)) {
          header.flags = wire::kFlagPayload;
          packet.resize(stride);
        }
        for (uint8_t changes = input_.u8() % 4; changes > 0 && packet.size() > wire::kHeaderBytes; --changes)
          packet[wire::kHeaderBytes + input_.below(static_cast<uint32_t>(packet.size()) - wire::kHeaderBytes)] = input_.u8();
      }
      header.write(packet.data());
      waiting_.push_back(std::move(packet));
    }
  }
  void wake() override {}
  bool arrived() const { return !waiting_.empty(); }
  Endpoint local() const override { return {}; }
  const PortCounters& counters() const override { return counters_; }

  uint32_t stride = 0;

 private:
  // Something else than a RESULT of this job.
  std::vector<uint8_t> stranger(wire::Header header, std::vector<uint8_t> packet) {
    switch (input_.below(6)) {
      case 0: header.token ^= 1u << input_.below(32); break;
      case 1: header.job ^= static_cast<uint16_t>(1 << input_.below(16)); break;
      case 2: header.version = 2 + input_.below(14); break;
      case 3: header.op = static_cast<uint8_t>(3 + input_.below(13)); break;
      case 4: header.slot ^= static_cast<uint16_t>(1 << input_.below(16)); break;
      default:
        packet.resize(input_.below(stride + 40));
        if (packet.size() == stride || packet.size() == wire::kHeaderBytes) packet.push_back(0);
    }
    uint8_t head[wire::kHeaderBytes];
    header.write(head);
    std::memcpy(packet.data(), head, std::min(packet.size(), sizeof head));
    return packet;
  }

  fuzz::Input& input_;
  bool hostile_;
  std::vector<std::vector<uint8_t>> waiting_, shown_;
  PortCounters counters_;
};

void run(fuzz::Input& input) {
  const uint8_t flags = input.u8();
  const bool hostile = flags & 1;
  Admission admission;
  admission.job = 7;
  admission.token = 0x55;
  admission.result_token = kResultToken;
  admission.base = 64;
  admission.slots = 8u << input.below(4);
  admission.words = 16 + input.below(64);
  admission.first_seq = flags & 2 ? 0xFFFFFFF0 : 0;
  admission.workers = 2;
  admission.window_limit = admission.slots;

  Call call;
  call.kind = Kind::allreduce;
  call.dtype = static_cast<DType>(input.below(6));
  const bool floats = call.dtype <= DType::bf16;
  const uint8_t widths[] = {kBounded, kExact, 32, 16, 8};
  call.bits = floats ? widths[input.below(5)] : call.dtype == DType::i32 ? 32 : 64;
  call.op = floats && flags & 4 ? ReduceOp::avg : ReduceOp::sum;
  call.sparse = flags & 8;
  call.block = 1 + input.below(80);
  call.count = 1 + input.below(700);
  call.fingerprint_count = call.count;
  call.workers = 2;
  call.in_end = call.out_end = call.count;
  const size_t bytes = call.count * call.element_bytes();
  const fuzz::Exact in(bytes), out(bytes);
  const uint8_t pattern = input.u8();
  std::memset(in.get(), 0, bytes);
  for (size_t element = 0; element < call.count; ++element) {  // zero blocks, and values of all sizes
    if (element / call.block % 8 < pattern % 8u) continue;
    uint8_t* const at = in.get() + element * call.element_bytes();
    for (uint32_t i = 0; i < call.element_bytes(); ++i) at[i] = static_cast<uint8_t>(pattern * 31 + element * (7 + i) + (element >> 3));
  }
  for (uint8_t changes = input.u8() % 8; changes > 0; --changes) in.get()[input.below(static_cast<uint32_t>(bytes))] = input.u8();
  std::memset(out.get(), 0xEE, bytes);
  call.in = in.get();
  call.out = flags & 16 ? in.get() : out.get();
  call.zero_fill = call.out != call.in;
  const fuzz::Exact memory(call.count * 4), unions((call.blocks() + 31) / 32 * 4);
  std::memset(memory.get(), 0, memory.size());
  std::memset(unions.get(), 0, unions.size());
  if (flags & 32 && floats && call.dtype != DType::f64) call.memory = reinterpret_cast<float*>(memory.get());
  if (flags & 64) call.union_out = reinterpret_cast<uint32_t*>(unions.get());
  std::vector<uint8_t> right(in.get(), in.get() + bytes);

  auto port = std::make_unique<FalseSwitch>(input, hostile);
  port->stride = wire::kHeaderBytes + 4 * admission.words;
  const FalseSwitch& network = *port;
  virtual_ns = 1'000'000'000;
  Engine engine(std::move(port), admission, {.clock = [] { return virtual_ns; }, .background_thread = false});
  const auto work = std::make_shared<Collective>();
  work->call = call;
  engine.submit(work, 60'000'000'000, false, 0);
  while (work->status == Status::pending) {
    const int64_t next = engine.step(virtual_ns, network.arrived());
    virtual_ns = network.arrived() || next <= virtual_ns ? virtual_ns + 1000 : next;
  }
  if (hostile) return;
  fuzz::check(work->status == Status::done, "packets of strangers kept a collective from its end");
  // Integers, and averages of two equal exact sums, are known without arithmetic of another kind.
  if (!floats) {
    for (size_t i = 0; i < call.count; ++i) {
      uint64_t a = 0, b = 0;
      std::memcpy(&a, &right[i * call.element_bytes()], call.element_bytes());
      std::memcpy(&b, call.out + i * call.element_bytes(), call.element_bytes());
      const uint64_t mask = call.element_bytes() == 4 ? 0xFFFFFFFF : ~uint64_t{0};
      fuzz::check((2 * a & mask) == b, "a wrong sum");
    }
  }
}

}  // namespace

const fuzz::Target fuzz::kEngine{"engine", run};
