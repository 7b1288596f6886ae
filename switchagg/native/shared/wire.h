// Generated from switchagg/wire/header.py by `python -m switchagg.wire.cpp_header`. Do not edit.
#pragma once

#include <cstdint>
#include <cstring>

namespace switchagg::wire {

inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kHeaderBytes = 16;
inline constexpr uint32_t kDefaultPort = 48879;
inline constexpr uint32_t kMinWords = 16;
inline constexpr uint32_t kMaxWords = 16372;
inline constexpr uint32_t kMaxWorkers = 32;
inline constexpr uint32_t kBlockSlots = 64;
inline constexpr uint32_t kMaxPacketBytes = 65507;

// Offsets of fields in bytes; version and op share the first one.
inline constexpr uint32_t kVersionOffset = 0;
inline constexpr uint32_t kOpOffset = 0;
inline constexpr uint32_t kFlagsOffset = 1;
inline constexpr uint32_t kJobOffset = 2;
inline constexpr uint32_t kTokenOffset = 4;
inline constexpr uint32_t kSeqOffset = 8;
inline constexpr uint32_t kSlotOffset = 12;
inline constexpr uint32_t kReplyOffset = 14;

// Operations of packets.
enum class Op : uint8_t {
  SUM = 0,
  OR = 1,
  RESULT = 2,
  INIT = 3,
};

// Bits of Header::flags.
inline constexpr uint8_t kFlagPayload = 1;
inline constexpr uint8_t kFlagRetransmission = 2;
inline constexpr uint8_t kFlagDirected = 4;
inline constexpr uint8_t kFlagCe = 8;
inline constexpr uint8_t kFlagEct = 16;

// Reasons for which a switch drops a packet, in the order of its checks.
enum class DropReason : uint8_t {
  truncated = 0,
  version = 1,
  op = 2,
  length = 3,
  job = 4,
  source = 5,
  token = 6,
  slot = 7,
  stale = 8,
  duplicate = 9,
  none = 255,
};

// Other counters of a switch, numbered after DropReason, so that one array holds both.
enum class Event : uint8_t {
  received = 10,
  accepted = 11,
  fresh = 12,
  stored = 13,
  added = 14,
  ored = 15,
  skips = 16,
  retransmissions = 17,
  duplicates_answered = 18,
  results = 19,
  empty_results = 20,
  inits = 21,
  delivered = 22,
};

inline constexpr uint32_t kCounters = 23;
inline constexpr const char* kCounterNames[kCounters] = {
    "truncated",
    "version",
    "op",
    "length",
    "job",
    "source",
    "token",
    "slot",
    "stale",
    "duplicate",
    "received",
    "accepted",
    "fresh",
    "stored",
    "added",
    "ored",
    "skips",
    "retransmissions",
    "duplicates_answered",
    "results",
    "empty_results",
    "inits",
    "delivered",
};

// Big-endian words in memory; x86 and little-endian Arm swap, others do not.
inline uint16_t load16(const uint8_t* at) {
  uint16_t value;
  std::memcpy(&value, at, 2);
  return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap16(value) : value;
}

inline uint32_t load32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, 4);
  return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap32(value) : value;
}

inline void store16(uint8_t* at, uint16_t value) {
  if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) value = __builtin_bswap16(value);
  std::memcpy(at, &value, 2);
}

inline void store32(uint8_t* at, uint32_t value) {
  if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) value = __builtin_bswap32(value);
  std::memcpy(at, &value, 4);
}

// Every value of each field is representable, so that a checker sees what was really sent.
struct Header {
  uint8_t version = kVersion;  // 1
  uint8_t op = 0;  // 0 SUM, 1 OR, 2 RESULT, 3 INIT
  uint8_t flags = 0;  // bit 0: payload present; bit 1: retransmission; bit 2: words for one; bits 3, 4: CE, ECT
  uint16_t job = 0;  // job id
  uint32_t token = 0;  // a worker's secret for this job; in a RESULT the job's result token
  uint32_t seq = 0;  // sequence number of this packet in the job, modulo 2^32
  uint16_t slot = 0;  // base + (seq mod P)
  uint16_t reply = 0;  // 0; of a repeat its time; bit + 1 of the worker that a leaf or a directed one names

  // `at` has kHeaderBytes bytes.
  static Header parse(const uint8_t* at) {
    Header header;
    header.version = (at[0] >> 4) & 0xf;
    header.op = at[0] & 0xf;
    header.flags = at[1];
    header.job = load16(at + 2);
    header.token = load32(at + 4);
    header.seq = load32(at + 8);
    header.slot = load16(at + 12);
    header.reply = load16(at + 14);
    return header;
  }

  void write(uint8_t* at) const {
    at[0] = static_cast<uint8_t>(version << 4 | op);
    at[1] = flags;
    store16(at + 2, job);
    store32(at + 4, token);
    store32(at + 8, seq);
    store16(at + 12, slot);
    store16(at + 14, reply);
  }
};

}  // namespace switchagg::wire
