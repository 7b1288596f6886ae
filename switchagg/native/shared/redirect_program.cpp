#include "switchagg/native/shared/redirect_program.h"

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <sys/syscall.h>

#include <array>
#include <cstring>
#include <system_error>
#include <vector>

#include "switchagg/native/shared/frame.h"

namespace switchagg {
namespace {

constexpr uint32_t kEndpoints = 1024;
constexpr int kBpfXdp = 37;  // BPF_XDP, an attach type of newer headers

int bpf(int command, bpf_attr& attributes) {
  return static_cast<int>(syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

struct Key {  // of an endpoint, as it stands in a packet
  uint32_t ip;
  uint32_t port;
};
Key key_of(Endpoint e) { return {htonl(e.ip), htons(e.port)}; }

Descriptor make_map(bpf_map_type type, uint32_t key, uint32_t entries) {
  bpf_attr attributes{};
  attributes.map_type = type;
  attributes.key_size = key;
  attributes.value_size = 4;
  attributes.max_entries = entries;
  Descriptor made(bpf(BPF_MAP_CREATE, attributes));
  if (!made) fail("making a BPF map");
  return made;
}

void update(const Descriptor& map, const void* key, const void* value) {
  bpf_attr attributes{};
  attributes.map_fd = static_cast<uint32_t>(map.get());
  attributes.key = reinterpret_cast<uintptr_t>(key);
  attributes.value = reinterpret_cast<uintptr_t>(value);
  if (bpf(BPF_MAP_UPDATE_ELEM, attributes) != 0) fail("filling a BPF map");
}

// Instructions, with jumps to the end that passes the frame.
class Assembler {
 public:
  void add(uint8_t code, uint8_t to, uint8_t from, int16_t offset, int32_t value) {
    bpf_insn made{};
    made.code = code;
    made.dst_reg = to & 0xF;
    made.src_reg = from & 0xF;
    made.off = offset;
    made.imm = value;
    code_.push_back(made);
  }
  void load(uint8_t size, uint8_t to, uint8_t from, int16_t offset) { add(BPF_LDX | BPF_MEM | size, to, from, offset, 0); }
  void store(uint8_t size, uint8_t to, int16_t offset, uint8_t from) { add(BPF_STX | BPF_MEM | size, to, from, offset, 0); }
  void move(uint8_t to, uint8_t from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void set(uint8_t to, int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
  void plus(uint8_t to, int32_t value) { add(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value); }
  void mask(uint8_t to, int32_t value) { add(BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, value); }
  void map(uint8_t to, const Descriptor& map) {
    add(BPF_LD | BPF_DW | BPF_IMM, to, BPF_PSEUDO_MAP_FD, 0, map.get());
    add(0, 0, 0, 0, 0);  // the upper half
  }
  void call(int32_t function) { add(BPF_JMP | BPF_CALL, 0, 0, 0, function); }
  void exit() { add(BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }
  void pass_if(uint8_t comparison, uint8_t left, int32_t value) {
    jumps_.push_back(code_.size());
    add(BPF_JMP | comparison | BPF_K, left, 0, 0, value);
  }
  void pass_if_register(uint8_t comparison, uint8_t left, uint8_t right) {
    jumps_.push_back(code_.size());
    add(BPF_JMP | comparison | BPF_X, left, right, 0, 0);
  }
  std::vector<bpf_insn> finish() {
    for (const size_t at : jumps_) code_[at].off = static_cast<int16_t>(code_.size() - at - 1);
    set(0, XDP_PASS);
    exit();
    return std::move(code_);
  }

 private:
  std::vector<bpf_insn> code_;
  std::vector<size_t> jumps_;
};

std::vector<bpf_insn> assemble(uint32_t largest, const Descriptor& endpoints, const Descriptor& sockets) {
  constexpr int16_t kType = 12, kIp = kEthernetBytes, kUdpAt = kEthernetBytes + kIpv4Bytes;
  Assembler a;
  a.load(BPF_W, 7, 1, offsetof(xdp_md, rx_queue_index));
  a.load(BPF_W, 2, 1, offsetof(xdp_md, data));
  a.load(BPF_W, 3, 1, offsetof(xdp_md, data_end));
  a.move(4, 2);
  a.plus(4, static_cast<int32_t>(kUdpHeadersBytes));
  a.pass_if_register(BPF_JGT, 4, 3);
  a.move(4, 2);
  a.plus(4, static_cast<int32_t>(largest));
  a.pass_if_register(BPF_JGT, 3, 4);
  a.load(BPF_H, 5, 2, kType);
  a.pass_if(BPF_JNE, 5, htons(kIpv4Type));
  a.load(BPF_B, 5, 2, kIp);
  a.pass_if(BPF_JNE, 5, 0x45);  // no options
  a.load(BPF_H, 5, 2, kIp + 6);
  a.mask(5, htons(0x3FFF));
  a.pass_if(BPF_JNE, 5, 0);  // no fragment
  a.load(BPF_B, 5, 2, kIp + 9);
  a.pass_if(BPF_JNE, 5, 17);  // UDP
  a.load(BPF_W, 5, 2, kIp + 16);
  a.store(BPF_W, 10, -8, 5);
  a.load(BPF_H, 5, 2, kUdpAt + 2);
  a.store(BPF_W, 10, -4, 5);
  a.map(1, endpoints);
  a.move(2, 10);
  a.plus(2, -8);
  a.call(BPF_FUNC_map_lookup_elem);
  a.pass_if(BPF_JEQ, 0, 0);
  a.map(1, sockets);
  a.move(2, 7);
  a.set(3, XDP_PASS);  // where this queue has no socket
  a.call(BPF_FUNC_redirect_map);
  a.exit();
  return a.finish();
}

Descriptor load(const std::vector<bpf_insn>& code) {
  static constexpr char kLicense[] = "Apache-2.0";
  std::array<char, 4096> log{};
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_XDP;
  attributes.insns = reinterpret_cast<uintptr_t>(code.data());
  attributes.insn_cnt = static_cast<uint32_t>(code.size());
  attributes.license = reinterpret_cast<uintptr_t>(kLicense);
  std::memcpy(attributes.prog_name, "switchagg", sizeof "switchagg");
  Descriptor made(bpf(BPF_PROG_LOAD, attributes));
  if (made) return made;
  const int error = errno;
  if (error == EINVAL || error == EACCES) {  // the verifier's reason
    attributes.log_buf = reinterpret_cast<uintptr_t>(log.data());
    attributes.log_size = log.size();
    attributes.log_level = 1;
    bpf(BPF_PROG_LOAD, attributes);
  }
  throw std::system_error(error, std::generic_category(), std::string("loading an XDP program") + (log[0] ? ": " : "") + log.data());
}

}  // namespace

RedirectProgram::RedirectProgram(int interface, uint32_t largest, uint32_t queues)
    : endpoints_(make_map(BPF_MAP_TYPE_HASH, sizeof(Key), kEndpoints)), sockets_(make_map(BPF_MAP_TYPE_XSKMAP, 4, queues)) {
  program_ = load(assemble(largest, endpoints_, sockets_));
  bpf_attr attributes{};
  attributes.link_create.prog_fd = static_cast<uint32_t>(program_.get());
  attributes.link_create.target_ifindex = static_cast<uint32_t>(interface);
  attributes.link_create.attach_type = static_cast<bpf_attach_type>(kBpfXdp);
  attributes.link_create.flags = XDP_FLAGS_DRV_MODE;
  link_ = Descriptor(bpf(BPF_LINK_CREATE, attributes));
  if (!link_ && errno != EBUSY && errno != EPERM) {
    in_driver_ = false;
    attributes.link_create.flags = XDP_FLAGS_SKB_MODE;
    link_ = Descriptor(bpf(BPF_LINK_CREATE, attributes));
  }
  if (!link_) fail(errno == EBUSY || errno == EEXIST ? "another process has an XDP program there" : "attaching an XDP program");
}

void RedirectProgram::set_socket(uint32_t queue, int socket) { update(sockets_, &queue, &socket); }

void RedirectProgram::open(Endpoint local) {
  const Key key = key_of(local);
  const uint32_t yes = 1;
  update(endpoints_, &key, &yes);
}

void RedirectProgram::close(Endpoint local) {
  const Key key = key_of(local);
  bpf_attr attributes{};
  attributes.map_fd = static_cast<uint32_t>(endpoints_.get());
  attributes.key = reinterpret_cast<uintptr_t>(&key);
  bpf(BPF_MAP_DELETE_ELEM, attributes);
}

void RedirectProgram::abandon() {
  link_.reset();
  program_.reset();
  endpoints_.reset();
  sockets_.reset();
}

}  // namespace switchagg
