// The slot table: packets of any bytes, from anybody, to a job on one switch, another one, and one with a parent. One table has
// them all, or each of three threads' tables has one job's slots and gets the others' packets too.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "switchagg/native/switch/slot_table.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace switchagg;

constexpr Endpoint kRoot{0x0A010001, 48879, 0};
constexpr uint32_t kLargest = 512;
Endpoint worker_at(uint32_t bit) { return {0x0A000001 + bit, 1000, 0}; }

JobAdmission job(uint16_t id, uint32_t base, uint32_t slots, uint32_t words, uint32_t workers, bool leaf) {
  JobAdmission entry;
  entry.job = id;
  entry.base = base;
  entry.slots = slots;
  entry.words = words;
  entry.result_token = 0xAA;
  for (uint32_t bit = 0; bit < workers; ++bit) entry.workers.push_back({worker_at(bit), bit, 0x10 + bit});
  if (leaf) entry.parent = ParentAdmission{kRoot, 0x77, 64, 0x78};
  return entry;
}

struct Shape {
  uint16_t id;
  uint32_t base, slots, words, workers;
};
constexpr Shape kShapes[] = {{1, 0, 4, 16, 2}, {2, 64, 8, 33, 32}, {3, 136, 4, 17, 3}};
constexpr uint32_t kCapacity = 192;

struct Tables {
  explicit Tables(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      each.push_back(std::make_unique<SlotTable>(kCapacity, Shard{i, count}));
      for (const Shape& s : kShapes) each[i]->add_job(job(s.id, s.base, s.slots, s.words, s.workers, s.id == 3));
    }
  }
  // The table that did what there was to do, and what that was.
  std::pair<SlotTable*, Verdict> process(uint32_t first, const Received& packet, bool controller) {
    SlotTable* table = each[first % each.size()].get();
    Verdict verdict = table->process(packet, controller);
    if (verdict.action == Action::stray) {
      fuzz::check(verdict.shard < each.size() && each[verdict.shard].get() != table, "a stray of nobody");
      table = each[verdict.shard].get();
      verdict = table->process(packet, controller);
      fuzz::check(verdict.action != Action::stray, "a stray twice");
    }
    return {table, verdict};
  }
  void flushed() {
    for (const auto& table : each) table->flushed();
  }
  void fence(uint16_t id, uint32_t bits) {
    for (const auto& table : each) table->fence(id, bits);
  }
  void admit(uint16_t id, uint32_t bits) {
    for (const auto& table : each) table->admit(id, bits);
  }

  std::vector<std::unique_ptr<SlotTable>> each;
};

void run(fuzz::Input& input) {
  static std::array<uint8_t, wire::kMaxPacketBytes> scratch;
  static uint8_t* const memory = static_cast<uint8_t*>(std::malloc(kLargest));  // packets end where it does
  static Tables one(1), three(3);
  Tables& tables = input.u8() & 1 ? three : one;
  for (const Shape& s : kShapes) tables.admit(s.id, static_cast<uint32_t>((uint64_t{1} << s.workers) - 1));
  for (const Shape& s : kShapes)
    for (uint32_t i = 0; i < s.slots; ++i) {
      wire::Header header;
      header.op = static_cast<uint8_t>(wire::Op::INIT);
      header.job = s.id;
      header.seq = i - s.slots;
      header.slot = static_cast<uint16_t>(s.base + i);
      uint8_t packet[wire::kHeaderBytes];
      header.write(packet);
      tables.process(0, Received::whole(packet, sizeof packet, {}), true);
      tables.flushed();
    }
  while (!input.empty()) {
    const Shape& s = kShapes[input.below(3)];
    const uint32_t bit = input.below(s.workers);
    wire::Header header;
    header.op = input.rarely() ? input.u8() & 15 : input.u8() & 1;
    if (input.rarely()) header.version = input.u8() & 15;
    header.flags = input.u8();
    header.job = input.rarely() ? input.u16() : s.id;
    header.token = input.rarely() ? input.u32() : 0x10 + bit;
    header.seq = input.rarely() ? input.u32() : input.u8() % 32;
    header.slot = input.rarely() ? input.u16() : static_cast<uint16_t>(s.base + header.seq % s.slots);
    header.reply = input.rarely() ? input.u16() : 0;
    Endpoint from = worker_at(bit);
    if (input.rarely()) {  // of the parent
      from = kRoot;
      header.op = static_cast<uint8_t>(wire::Op::RESULT);
      header.token = 0x78;
      header.slot = static_cast<uint16_t>(64 + header.seq % s.slots);
    }
    uint32_t size = wire::kHeaderBytes + (header.flags & wire::kFlagPayload ? 4 * s.words : 0);
    if (input.rarely()) size = input.below(300);
    uint8_t* const packet = memory + kLargest - size;
    std::memset(packet, input.u8(), size);
    uint8_t head[wire::kHeaderBytes];
    header.write(head);
    std::memcpy(packet, head, std::min<size_t>(size, sizeof head));
    const bool controller = input.rarely();
    const Received received = Received::whole(packet, size, from);
    const uint32_t first = input.u8();
    auto [found, verdict] = tables.process(first, received, controller);
    SlotTable& table = *found;
    if (verdict.action == Action::flush) {
      table.flushed();
      verdict = table.process(received, controller);
      fuzz::check(verdict.action != Action::flush, "flush twice");
    }
    switch (verdict.action) {
      case Action::multicast:
      case Action::unicast: {
        const Segment segment = table.result(verdict.job_index, verdict.slot);
        fuzz::read_all(segment.data, segment.size);
        const auto audience = table.audience(verdict.job_index);
        fuzz::check(!audience.empty(), "nobody to send to");
        if (verdict.action == Action::unicast) {
          const Segment answer = table.result_with_reply(verdict, scratch.data());
          fuzz::check(answer.size == segment.size, "an answer of another size");
        }
        break;
      }
      case Action::deliver: {
        const Segment down = table.delivered(verdict, received, scratch.data());
        fuzz::check(down.size == size, "passed on with another size");
        break;
      }
      case Action::to_controller:
        fuzz::check(controller, "to the controller, and not from it");
        break;
      default:
        break;
    }
    if (input.rarely()) tables.flushed();
    if (input.rarely()) tables.fence(s.id, 1u << bit);
    if (input.rarely()) tables.admit(s.id, 1u << bit);
  }
  tables.flushed();
}

}  // namespace

const fuzz::Target fuzz::kSlots{"slots", run};
