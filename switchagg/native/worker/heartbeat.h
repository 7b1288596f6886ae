// Sends the controller a heartbeat with counters at an interval, from a thread that needs neither Python's interpreter lock
// nor the engine's driver. switchagg/wire/heartbeat.py defines the datagram.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "switchagg/native/shared/descriptor.h"
#include "switchagg/native/worker/engine.h"

namespace switchagg {

// The counters of a heartbeat, in the order of the wire.
inline constexpr size_t kReportFields = 45;
using Report = std::array<uint64_t, kReportFields>;
Report report_of(Engine& engine);

using Cookie = std::array<uint8_t, 16>;
inline constexpr size_t kHeartbeatBytes = 32 + 8 * kReportFields;
std::array<uint8_t, kHeartbeatBytes> heartbeat(const Cookie& cookie, uint64_t sequence, const Report& report);

class HeartbeatSender {
 public:
  // The engine must outlive it. Throws std::system_error if there is no socket.
  explicit HeartbeatSender(Engine& engine);
  ~HeartbeatSender();
  HeartbeatSender(const HeartbeatSender&) = delete;
  HeartbeatSender& operator=(const HeartbeatSender&) = delete;

  // Sends from now on, first at once, to this address; counters start at zero. Throws std::system_error as the constructor.
  void start(Endpoint to, const Cookie& cookie, int64_t interval_ns);
  // Stops sending at once. Any thread may call it.
  void close();
  // In a forked child: forgets the thread and closes the socket. Call nothing else afterwards.
  void abandon();
  uint64_t sent();

 private:
  void open(int family);
  void run();

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false, started_ = false, abandoned_ = false;
  Descriptor socket_;
  Endpoint to_;
  Cookie cookie_{};
  int64_t interval_ns_ = 0;
  uint64_t sequence_ = 0;
  Report baseline_{};
  std::optional<std::thread> thread_;
};

}  // namespace switchagg
