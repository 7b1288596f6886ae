#include "switchagg/native/shared/ip_address.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace switchagg {
namespace {

// Unused pages of these cost nothing.
std::array<in6_addr, kIpv6Addresses + 1> addresses;
std::array<std::atomic<uint32_t>, 2 * (kIpv6Addresses + 1)> places;  // by hash, with linear probing: numbers, 0 for none
std::atomic<uint32_t> taken{0};                                      // numbers

// Secret, so that nobody chooses addresses that collide.
uint64_t drawn() {
  uint64_t random = 0;
  [[maybe_unused]] const ssize_t n = getrandom(&random, sizeof random, GRND_NONBLOCK);
  return random;
}
const uint64_t secret = drawn();

size_t first_place(const in6_addr& address) {
  uint64_t halves[2];
  std::memcpy(halves, &address, sizeof halves);
  const auto mixed = [](uint64_t x) {
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
  };
  return mixed(mixed(halves[0] ^ secret) + halves[1]) >> 32;
}

// The IPv4 address in ::ffff:a.b.c.d, if it is one; 0 if it is in 0.0.0.0/8.
std::optional<uint32_t> mapped(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return std::nullopt;
  const uint32_t ip = wire::load32(address.s6_addr + 12);
  return ip >> 24 ? ip : 0;
}

bool equal(const in6_addr& a, const in6_addr& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

uint32_t find_ipv6(const in6_addr& address) {
  if (const auto ip = mapped(address)) return *ip;
  for (size_t place = first_place(address);; ++place) {
    const uint32_t number = places[place % places.size()].load(std::memory_order_acquire);
    if (!number || equal(addresses[number], address)) return number;
  }
}

uint32_t add_ipv6(const in6_addr& address, uint32_t limit) {
  if (const uint32_t known = find_ipv6(address)) return known;
  if (mapped(address)) return 0;
  uint32_t number = taken.load(std::memory_order_relaxed);
  do {
    if (number >= limit) return 0;
  } while (!taken.compare_exchange_weak(number, number + 1, std::memory_order_relaxed));
  addresses[++number] = address;
  for (size_t place = first_place(address);; ++place) {
    uint32_t there = 0;
    // Another thread may have added the same one; `number` then stays without a place.
    if (places[place % places.size()].compare_exchange_strong(there, number, std::memory_order_acq_rel)) return number;
    if (equal(addresses[there], address)) return there;
  }
}

in6_addr ipv6_of(uint32_t ip) {
  if (is_ipv6(ip)) return addresses[ip];
  in6_addr address{};
  address.s6_addr[10] = address.s6_addr[11] = 0xFF;
  wire::store32(address.s6_addr + 12, ip);
  return address;
}

std::optional<uint32_t> ip_of(const std::string& text) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    const uint32_t ip = ntohl(v4.s_addr);
    return ip >> 24 || !ip ? std::optional(ip) : std::nullopt;
  }
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1 || mapped(v6) == 0u) return std::nullopt;
  const uint32_t ip = add_ipv6(v6);
  if (!ip) throw std::system_error(ENOSPC, std::generic_category(), "too many IPv6 addresses in one process");
  return ip;
}

std::string text_of(uint32_t ip) {
  char text[INET6_ADDRSTRLEN];
  if (is_ipv6(ip)) return inet_ntop(AF_INET6, &addresses[ip], text, sizeof text);
  const in_addr v4{htonl(ip)};
  return inet_ntop(AF_INET, &v4, text, sizeof text);
}

SocketAddress::SocketAddress(Endpoint endpoint, sa_family_t family) {
  if (family == AF_INET6) {
    v6_.sin6_family = AF_INET6;
    v6_.sin6_port = htons(endpoint.port);
    v6_.sin6_addr = ipv6_of(endpoint.ip);
  } else {
    v4_.sin_family = AF_INET;
    v4_.sin_port = htons(endpoint.port);
    v4_.sin_addr.s_addr = htonl(endpoint.ip);
  }
}

Endpoint SocketAddress::added() const {
  if (any_.sa_family == AF_INET6) add_ipv6(v6_.sin6_addr, kIpv6Addresses / 2);
  return endpoint();
}

}  // namespace switchagg
