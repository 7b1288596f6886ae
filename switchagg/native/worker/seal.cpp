#include "switchagg/native/worker/seal.h"

#include <dlfcn.h>
#include <sys/random.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "switchagg/native/shared/wire.h"

namespace switchagg {
namespace {

using Key = std::array<uint8_t, 32>;
constexpr std::string_view kLabel = "switchagg seal 1";

// The functions of libcrypto, of OpenSSL 1.1 and 3.
struct Crypto {
  void* (*context_new)();
  void (*context_free)(void*);
  int (*init)(void*, const void*, void*, const unsigned char*, const unsigned char*);
  int (*update)(void*, unsigned char*, int*, const unsigned char*, int);
  const void* (*aes_256_ctr)();
  const void* (*sha256)();
  unsigned char* (*hmac)(const void*, const void*, int, const unsigned char*, size_t, unsigned char*, unsigned int*);

  Crypto() {
    void* library = nullptr;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error("sealed sums need OpenSSL's libcrypto.so.3 (or .1.1), which cannot be loaded");
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (!function) throw std::runtime_error(std::string("libcrypto has no ") + name);
    };
    load(context_new, "EVP_CIPHER_CTX_new");
    load(context_free, "EVP_CIPHER_CTX_free");
    load(init, "EVP_EncryptInit_ex");
    load(update, "EVP_EncryptUpdate");
    load(aes_256_ctr, "EVP_aes_256_ctr");
    load(sha256, "EVP_sha256");
    load(hmac, "HMAC");
  }
};

const Crypto& crypto() {
  static const Crypto loaded;
  return loaded;
}

Key hmac(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  Key out;
  unsigned int size = 0;
  if (!crypto().hmac(crypto().sha256(), key.data(), static_cast<int>(key.size()), message.data(), message.size(), out.data(), &size) ||
      size != out.size())
    throw std::runtime_error("HMAC-SHA-256 of libcrypto failed");
  return out;
}

// Wipes a value in the end.
template <typename T>
struct Wiped {
  T value;
  ~Wiped() { explicit_bzero(&value, sizeof(value)); }
};

std::span<const uint8_t> bytes(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

}  // namespace

void require_crypto() { crypto(); }

Nonce fresh_nonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) throw std::runtime_error("getrandom failed");
  return nonce;
}

struct Seal::Context {
  explicit Context(const Key& key) : context(crypto().context_new()) {
    if (!context || !crypto().init(context, crypto().aes_256_ctr(), nullptr, key.data(), nullptr))
      throw std::runtime_error("AES-256 of libcrypto failed");
  }
  ~Context() { crypto().context_free(context); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Encrypts zeros, from a counter block on.
  void run(const uint8_t* block, std::span<const uint8_t> zeros, uint8_t* to) const {
    int size = 0;
    if (!crypto().init(context, nullptr, nullptr, nullptr, block) ||
        !crypto().update(context, to, &size, zeros.data(), static_cast<int>(zeros.size())))
      throw std::runtime_error("AES-256 of libcrypto failed");
  }

  void* context;
};

Seal::Seal(std::span<const uint8_t> secret, std::span<const Nonce> nonces, uint32_t rank, uint32_t words)
    : rank_(rank), ranks_(static_cast<uint32_t>(nonces.size())), kernels_(choose_lane_kernels()), zeros_(words), first_(words), second_(words) {
  std::vector<uint8_t> message(kLabel.begin(), kLabel.end());
  message.resize(message.size() + 4);
  wire::store32(message.data() + kLabel.size(), ranks_);
  for (const Nonce& nonce : nonces) message.insert(message.end(), nonce.begin(), nonce.end());
  Wiped<Key> key{hmac(secret, message)};
  Wiped<Key> pads{hmac(key.value, bytes("pads"))};
  pads_ = std::make_unique<Context>(pads.value);
  weights_key_ = hmac(key.value, bytes("weights"));
  if (!has_aes_kernel()) return;
  pads_by_kernel_ = expanded(pads.value);
  const Block plus = first_block(0xFFFF, 0), minus = first_block(0xFFFE, 0);  // of no rank
  std::vector<uint32_t> one(words), other(words);
  pad_by_kernel(*pads_by_kernel_, plus.data(), minus.data(), zeros_.data(), 0, words, one.data(), nullptr);
  pad_by_library(&plus, &minus, zeros_.data(), other.data());
  if (one != other) throw std::runtime_error("AES-256 of this processor and of libcrypto differ");
}

Seal::~Seal() {
  explicit_bzero(weights_key_.data(), weights_key_.size());
  if (pads_by_kernel_) explicit_bzero(&*pads_by_kernel_, sizeof(AesKeys));
}

std::vector<uint32_t> Seal::secret_words(size_t count) const {
  const std::vector<uint8_t> zeros(4 * count);
  std::vector<uint8_t> stream(zeros.size());
  const uint8_t block[16] = {};
  Context(weights_key_).run(block, zeros, stream.data());
  std::vector<uint32_t> words(count);
  for (size_t i = 0; i < count; ++i) words[i] = wire::load32(stream.data() + 4 * i);
  explicit_bzero(stream.data(), stream.size());
  return words;
}

// 2 bytes of rank, 8 of packet number, 6 that count blocks.
Seal::Block Seal::first_block(uint32_t rank, uint64_t packet_number) {
  Block block = {};
  wire::store16(block.data(), static_cast<uint16_t>(rank));
  wire::store32(block.data() + 2, static_cast<uint32_t>(packet_number >> 32));
  wire::store32(block.data() + 6, static_cast<uint32_t>(packet_number));
  return block;
}

void Seal::pad_by_library(const Block* plus, const Block* minus, const uint32_t* words, uint32_t* to) {
  const std::span<const uint8_t> zeros(reinterpret_cast<const uint8_t*>(zeros_.data()), 4 * zeros_.size());
  if (plus) pads_->run(plus->data(), zeros, reinterpret_cast<uint8_t*>(first_.data()));
  if (minus) pads_->run(minus->data(), zeros, reinterpret_cast<uint8_t*>(second_.data()));
  kernels_.pad_be(words, plus ? first_.data() : nullptr, minus ? second_.data() : nullptr, zeros_.size(), to);
}

void Seal::add_pad(uint64_t packet_number, bool alone, const PacketCheck& check, const Digest& digest, uint8_t* payload, uint8_t* to) {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(payload);
  uint32_t* const padded = reinterpret_cast<uint32_t*>(to);
  const Block own = first_block(rank_, packet_number), next = first_block(rank_ + 1, packet_number);
  const bool last = alone || rank_ + 1 == ranks_;
  if (!pads_by_kernel_) {
    check.write(packet_number, digest, check.weighted(payload), payload);
    return pad_by_library(&own, last ? nullptr : &next, words, padded);
  }
  const size_t whole = check.words() / kPadStep * kPadStep;
  WeightedSums weighted{{check.weights(0), check.weights(1)}};
  const auto pad = [&](size_t first, size_t end, WeightedSums* sums) {
    pad_by_kernel(*pads_by_kernel_, own.data(), last ? nullptr : next.data(), words, first, end, padded, sums);
  };
  pad(0, whole, &weighted);
  PacketCheck::Sums sums = check.weighted(payload, whole);
  for (size_t i = 0; i < sums.of.size(); ++i) sums.of[i] += weighted.sums[i];
  check.write(packet_number, digest, sums, payload);
  pad(whole, zeros_.size(), nullptr);
}

PacketCheck::Sums Seal::take_pad(uint64_t packet_number, uint32_t owner, const PacketCheck& check, const uint8_t* payload, uint8_t* to) {
  const uint32_t* const words = reinterpret_cast<const uint32_t*>(payload);
  uint32_t* const opened = reinterpret_cast<uint32_t*>(to);
  const Block left = first_block(owner, packet_number);
  if (!pads_by_kernel_) {
    pad_by_library(nullptr, &left, words, opened);
    return check.weighted(to);
  }
  WeightedSums weighted{{check.weights(0), check.weights(1)}};
  pad_by_kernel(*pads_by_kernel_, nullptr, left.data(), words, 0, zeros_.size(), opened, &weighted);
  return {weighted.sums};
}

}  // namespace switchagg
