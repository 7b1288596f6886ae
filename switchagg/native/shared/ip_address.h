// IPv6 addresses in an Endpoint, whose `ip` has the 32 bits of an IPv4 address.
//
// An IPv6 address is known by its number in a table of the process, 1 to kIpv6Addresses: numbers of 0.0.0.0/8, which no
// host has as its IPv4 address. So whatever compares, hashes and keeps endpoints does with both kinds what it did with one.
// The table has the addresses that someone named (of workers, switches, sockets), not those of whoever sends packets. It
// only grows. Any thread may use it, and a child of fork() too: nothing waits.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "switchagg/native/shared/port.h"

namespace switchagg {

inline constexpr uint32_t kIpv6Addresses = (1 << 20) - 1;

inline bool is_ipv6(uint32_t ip) { return ip - 1 < kIpv6Addresses; }

// The number of an address: 0 if it is not in the table; of ::ffff:a.b.c.d, the IPv4 address.
uint32_t find_ipv6(const in6_addr& address);
// The same, which it has from now on; 0 if the table has `limit` addresses.
uint32_t add_ipv6(const in6_addr& address, uint32_t limit = kIpv6Addresses);
in6_addr ipv6_of(uint32_t ip);  // of an IPv4 address, ::ffff:a.b.c.d

// Of "10.0.0.1" or "fd00::1"; nothing for any other text. Throws std::system_error if the table is full.
std::optional<uint32_t> ip_of(const std::string& text);
std::string text_of(uint32_t ip);

// A socket address of either family. A socket for IPv6 takes IPv4 addresses as ::ffff:a.b.c.d, one for IPv4 as they are.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(Endpoint endpoint, sa_family_t family);
  explicit SocketAddress(Endpoint endpoint) : SocketAddress(endpoint, family_of(endpoint)) {}

  static sa_family_t family_of(Endpoint endpoint) { return is_ipv6(endpoint.ip) ? AF_INET6 : AF_INET; }

  // Of an address that is not in the table, or in 0.0.0.0/8, `ip` is 0.
  Endpoint endpoint() const {
    if (any_.sa_family != AF_INET) return {find_ipv6(v6_.sin6_addr), ntohs(v6_.sin6_port)};
    const uint32_t ip = ntohl(v4_.sin_addr.s_addr);
    return {ip >> 24 ? ip : 0, ntohs(v4_.sin_port)};
  }
  // The same, and adds an IPv6 address to the table while that is less than half full.
  Endpoint added() const;
  sa_family_t family() const { return any_.sa_family; }
  sockaddr* get() { return &any_; }
  const sockaddr* get() const { return &any_; }
  socklen_t size() const { return any_.sa_family == AF_INET6 ? sizeof v6_ : sizeof v4_; }
  static constexpr socklen_t kLargest = sizeof(sockaddr_in6);

 private:
  union {
    sockaddr_in6 v6_{};
    sockaddr_in v4_;
    sockaddr any_;
  };
};

}  // namespace switchagg
