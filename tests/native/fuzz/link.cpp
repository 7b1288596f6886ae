// The worker's side of a link: a switch that announces and writes anything.
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <memory>
#include <string>
#include <thread>

#include "switchagg/native/worker/link_port.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace switchagg;

constexpr uint32_t kPacketBytes = 128, kEntries = 64;
const link::Shape kShape{kEntries, kPacketBytes, 4096};
constexpr Endpoint kSwitch{0x7F000001, 48879, 0};

// A false switch, and a worker's port that is attached to it.
struct World {
  World() {
    listener = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name = "switchagg-fuzz-" + std::to_string(getpid());
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    fuzz::check(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener.get(), 4) == 0, "listen");
  }
  void attach() {
    port.reset();
    std::thread other([this] {
      connection = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      link::Attach request;
      std::array<Descriptor, 3> given;
      fuzz::check(receive_message(connection.get(), request, given, true), "no request");
      memory = std::move(*SharedMemory::map(std::move(given[0]), kShape.bytes(), true));
      int ends[2];
      fuzz::check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      bell = Descriptor(ends[0]);
      const Descriptor theirs(ends[1]);
      const link::Attached answer{link::kMagic, 1};
      fuzz::check(send_message(connection.get(), answer, {&ends[1], 1}), "answer");
    });
    UdpOptions options;
    options.bind = {0x7F000001, 0, 0};
    auto udp = std::make_unique<UdpPort>(options);
    port = std::make_unique<LinkPort>(udp, name, kSwitch, 7, 0x1234, kShape);
    other.join();
    writer = link::Writer(memory.get(), kShape.down_ring(), kShape.down_entries(), kEntries);
    attached = true;
  }
  void put(const link::Entry& entry) {
    if (const int64_t at = writer.next_index(); at >= 0) writer.write(at, entry);
    writer.publish();
  }
  link::Ring& ring() { return *reinterpret_cast<link::Ring*>(memory.get() + kShape.down_ring()); }

  std::string name;
  Descriptor listener, connection, bell;
  SharedMemory memory;
  std::unique_ptr<LinkPort> port;
  link::Writer writer;
  bool attached = false;
};

void announce(World& world, fuzz::Input& input) {
  link::Announce message;
  message.region = input.rarely() ? 0 : 1 + input.below(4);
  message.bytes = input.rarely() ? uint64_t{input.u32()} << (input.u8() % 32) : 4096;
  if (input.rarely()) message.magic = input.u32();
  const SharedMemory memory = SharedMemory::make(4096, true);
  const int descriptor = input.rarely() ? world.listener.get() : memory.descriptor();
  const size_t count = input.rarely() ? 0 : 1;
  send_bytes(world.connection.get(), &message, input.rarely() ? input.below(sizeof message) + 1 : sizeof message, {&descriptor, count});
}

void run(fuzz::Input& input) {
  static World world;
  if (!world.attached) world.attach();
  std::vector<Received> got;
  while (!input.empty() && world.attached) {
    const uint8_t what = input.u8();
    if (what >= 0xFC) {
      world.ring().written.store(input.u32());
    } else if (what >= 0xF0) {
      announce(world, input);
    } else {
      link::Entry entry{};
      entry.region = input.rarely() ? input.below(6) : 0;
      entry.size = input.rarely() ? input.u32() : wire::kHeaderBytes + input.below(kPacketBytes - wire::kHeaderBytes + 1);
      entry.offset = input.rarely() ? uint64_t{input.u32()} << (input.u8() % 40) : input.u16() % 4096;
      input.fill(entry.header, sizeof entry.header);
      world.put(entry);
    }
    got.clear();
    world.port->receive(got);
    for (const Received& each : got) {
      fuzz::check(each.size >= wire::kHeaderBytes && each.size <= kPacketBytes, "a packet of no possible size");
      fuzz::read_all(each.header, wire::kHeaderBytes);
      fuzz::read_all(each.words, each.size - wire::kHeaderBytes);
    }
    world.port->wait(0);
    char byte;
    world.attached = recv(world.connection.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 0;
  }
}

}  // namespace

const fuzz::Target fuzz::kLink{"link", run};
