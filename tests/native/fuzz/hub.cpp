// The switch's side of a link: requests to attach of any bytes, and a worker that writes anything into the memory.
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <memory>
#include <optional>

#include "switchagg/native/switch/hub_port.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace switchagg;

constexpr uint16_t kJob = 7;
constexpr uint32_t kToken = 0x1234, kPacketBytes = 128, kEntries = 64;
const link::Shape kShape{kEntries, kPacketBytes, 4096};

Descriptor connect_to(const std::string& name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  fuzz::check(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
  return socket;
}

UdpOptions loopback() {
  UdpOptions options;
  options.bind = {0x7F000001, 0, 0};
  return options;
}

// A switch's port, and a worker of it, which starts again when its link has ended.
struct World {
  World()
      : worker(loopback()), hub(std::make_unique<UdpPort>(loopback()), [this](uint16_t job, Endpoint at, uint32_t token) {
          return job == kJob && at == worker.local() && token == kToken;
        }) {}

  void attach() {
    socket = connect_to(hub.name());
    memory = SharedMemory::make(kShape.bytes(), false);
    const SharedMemory packets = SharedMemory::make(kShape.memory_bytes, false);
    const link::Attach request{link::kMagic, kJob, kToken, kShape};
    const int descriptors[] = {memory.descriptor(), packets.descriptor(), worker.descriptor()};
    fuzz::check(send_message(socket.get(), request, descriptors), "attach");
    hub.wait(0);  // accepts
    hub.wait(0);  // attaches
    link::Attached answer;
    std::array<Descriptor, 1> given;
    fuzz::check(receive_message(socket.get(), answer, given) && answer.threads == 1, "refused");
    bell = std::move(given[0]);
    writer = link::Writer(memory.get(), kShape.up_ring(), kShape.up_entries(), kEntries);
    // An entry at offset 0 shows where the switch has packet memory.
    put({0, wire::kHeaderBytes, 0, {}});
    std::vector<Received> got;
    hub.receive(got);
    fuzz::check(got.size() == 1, "an entry was not taken");
    begin = got[0].words;
    attached = true;
  }
  void put(const link::Entry& entry) {
    if (const int64_t at = writer.next_index(); at >= 0) writer.write(at, entry);
    writer.publish();
  }
  link::Ring& ring() { return *reinterpret_cast<link::Ring*>(memory.get() + kShape.up_ring()); }
  link::Ring& down() { return *reinterpret_cast<link::Ring*>(memory.get() + kShape.down_ring()); }
  bool ended() {
    char byte;
    return recv(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }

  UdpPort worker;
  HubPort hub;
  Descriptor socket, bell;
  SharedMemory memory;
  const uint8_t* begin = nullptr;
  link::Writer writer;
  bool attached = false;
};

void ask(World& world, fuzz::Input& input) {
  const Descriptor socket = connect_to(world.hub.name());
  link::Attach request;
  request.job = input.rarely() ? input.u32() : kJob;
  request.token = input.rarely() ? input.u32() : kToken;
  request.shape = kShape;
  if (input.rarely()) request.magic = input.u32();
  if (input.rarely()) request.shape.entries = input.u32();
  if (input.rarely()) request.shape.packet_bytes = input.u32();
  if (input.rarely()) request.shape.memory_bytes = uint64_t{input.u32()} << 32 | input.u32();
  const SharedMemory memory = SharedMemory::make(input.rarely() ? 4096 : kShape.bytes(), false);
  const SharedMemory packets = SharedMemory::make(input.rarely() ? 2048 : kShape.memory_bytes, false);
  std::vector<int> descriptors{memory.descriptor(), packets.descriptor(), world.worker.descriptor()};
  if (input.rarely()) std::swap(descriptors[0], descriptors[1 + input.below(2)]);
  if (input.rarely()) descriptors.resize(input.below(4));
  const size_t size = input.rarely() ? input.below(sizeof request) + 1 : sizeof request;
  send_bytes(socket.get(), &request, size, descriptors);
  world.hub.wait(0);
  world.hub.wait(0);
}

void run(fuzz::Input& input) {
  static World world;
  if (!world.attached) world.attach();
  std::vector<Received> got;
  while (!input.empty() && world.attached) {
    const uint8_t what = input.u8();
    if (what == 0xFF) {
      ask(world, input);
    } else if (what >= 0xFC) {
      world.ring().written.store(input.u32());
    } else if (what >= 0xF8) {
      world.down().taken.store(input.u32());
      world.down().asleep.store(input.u8());
    } else if (what >= 0xE0) {
      std::array<uint8_t, 256> packet{};
      packet[wire::kJobOffset + 1] = kJob;
      const Segment segment{packet.data(), input.below(packet.size())};
      const Endpoint to[] = {world.worker.local()};
      world.hub.send(to, {&segment, 1});
    } else {
      link::Entry entry{};
      entry.region = input.rarely() ? input.u32() : 0;
      entry.size = input.rarely() ? input.u32() : wire::kHeaderBytes + input.below(kPacketBytes - wire::kHeaderBytes + 1);
      entry.offset = input.rarely() ? uint64_t{input.u32()} << (input.u8() % 40) : input.u16() % kShape.memory_bytes;
      input.fill(entry.header, sizeof entry.header);
      world.put(entry);
    }
    got.clear();
    world.hub.receive(got);
    for (const Received& each : got) {
      const size_t words = each.size - wire::kHeaderBytes;
      fuzz::check(each.size >= wire::kHeaderBytes && each.size <= kPacketBytes, "a packet of no possible size");
      fuzz::check(each.words >= world.begin && each.words + words <= world.begin + kShape.memory_bytes, "words outside packet memory");
      fuzz::read_all(each.header, wire::kHeaderBytes);
      fuzz::read_all(each.words, words);
    }
    world.hub.wait(0);
    world.attached = !world.ended();
  }
}

}  // namespace

const fuzz::Target fuzz::kHub{"hub", run};
