// The sender's window: acknowledgement, loss detection and congestion control by packet number. No I/O, no clock.
// docs/protocol.md, section 8, has the rules; tests/reference/window.py is the reference implementation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "switchagg/native/shared/wire.h"

namespace switchagg {

class Window {
 public:
  // `first`: the first packet number. `shared`: the congestion window follows losses and marks, as TCP's does. `threads`: those
  // of the switch, to which blocks of slots are dealt in turn; 0 is one. `first_seq`: the sequence number of packet number 0.
  Window(uint32_t slots, uint32_t batch, uint32_t limit, uint64_t first = 0, bool shared = false, uint32_t threads = 1,
         uint32_t first_seq = 0);

  uint64_t base() const { return base_; }
  uint64_t next() const { return next_; }
  uint32_t batch() const { return batch_; }
  uint32_t train() const { return shared_ ? std::clamp(cwnd_ / 4, 1u, batch_) : batch_; }  // packets that may be sent at once
  uint32_t cwnd() const { return cwnd_; }
  bool shared() const { return shared_; }
  int64_t srtt() const { return measured_.srtt; }
  int64_t rttvar() const { return measured_.rttvar; }
  int64_t rto() const;
  uint64_t retransmissions() const { return retransmissions_; }
  uint32_t outstanding() const { return static_cast<uint32_t>(next_ - base_) - held_; }

  // True if a RESULT is held while an earlier one is missing.
  bool gaps() const { return high_ > base_; }

  uint32_t room() const;
  void sent(uint32_t count, int64_t now, bool timed);
  bool on_result(uint64_t packet_number);  // false: outside the window, or a duplicate
  // The RESULT of a packet number, just held, says that a queue has marked packets.
  void on_ce(uint64_t packet_number, int64_t now);
  bool holds(uint64_t packet_number) const {
    return packet_number < base_ || (packet_number < next_ && at(packet_number).done);
  }
  // The time in steps of 4.1 us, 1 to 65,535 and then again: what a retransmission carries, and its answer echoes.
  static uint16_t stamp(int64_t now) { return static_cast<uint16_t>(now / kStampNs % UINT16_MAX + 1); }
  // A RESULT came as the answer to a retransmission of that time. A new one was lost on its first way.
  void answered(uint16_t stamp, bool is_new, int64_t now);
  // Processes a batch of new RESULTs: round-trip sample, window growth, new base.
  void acknowledge(std::span<const uint64_t> accepted, int64_t now);
  // Appends packet numbers to retransmit now: lost by reordering threshold or loss timer, at most a train, and less after
  // several time-outs in a row that no RESULT followed.
  void detect_lost(int64_t now, std::vector<uint64_t>& out);
  int64_t loss_timer() const;  // -1: nothing is outstanding

 private:
  static constexpr int64_t kStampNs = 4096;
  struct Entry {
    int64_t sent_at, deadline;
    uint64_t later_from;  // RESULTs from this packet number on count towards the threshold
    bool timed, done;
  };
  Entry& at(uint64_t packet_number) { return entries_[packet_number & (span_ - 1)]; }
  const Entry& at(uint64_t packet_number) const { return entries_[packet_number & (span_ - 1)]; }
  int64_t round_trip() const { return measured_.srtt > 0 ? std::min(measured_.srtt, rto()) : rto(); }
  int64_t timeout() const;
  // The thread that has the packet's slot, counted from that of the job's first slot; the packet number after its highest RESULT.
  uint32_t thread_of(uint64_t packet_number) const {
    if (highs_.size() == 1) return 0;
    return ((first_seq_ + static_cast<uint32_t>(packet_number)) & (2 * span_ - 1)) / wire::kBlockSlots % highs_.size();
  }
  uint64_t high_of_thread(uint64_t packet_number) const { return highs_[thread_of(packet_number)]; }
  void back_off(int64_t now);
  void sample(int64_t rtt);
  bool shrink(uint32_t numerator, uint32_t denominator, int64_t now);
  uint32_t growth() const;  // half packets a round trip

  uint32_t span_, limit_, batch_, reordering_threshold_, first_seq_;
  bool shared_;
  uint32_t cwnd_, least_cwnd_;
  uint32_t fast_below_;  // shared: the window after the last loss, up to which it grows fast
  uint64_t base_ = 0, next_ = 0, high_ = 0;
  std::vector<uint64_t> highs_;  // of each thread
  uint32_t held_ = 0;
  uint64_t credit_ = 0;
  struct RoundTrip {  // RFC 6298
    int64_t srtt = 0, rttvar = 0;
    void add(int64_t rtt);
    int64_t rto() const { return srtt + 4 * rttvar; }
  };
  RoundTrip measured_, path_;  // of flights; of answers to retransmissions, which wait for nobody
  int64_t rto_;
  int64_t shrunk_at_ = -1;
  std::vector<int64_t> samples_;  // round trips of this flight
  uint64_t flight_end_ = 0;
  // Of some flights: the least round trip, and whether a packet was lost in one, which lateness does not look like.
  struct Epoch {
    int64_t least = INT64_MAX;
    bool lossy = false;
  };
  Epoch present_, last_;
  uint32_t flights_ = 0;  // of the present epoch
  int64_t timers_held_until_ = 0;
  uint32_t backoff_ = 0, unanswered_ = 0;  // time-outs in a row after which no RESULT came
  int64_t backed_off_at_ = 0;
  bool progress_ = false;
  uint64_t retransmissions_ = 0;
  std::vector<Entry> entries_;      // a ring of P/2
  std::vector<uint32_t> held_from_;  // scratch of detect_lost()
};

}  // namespace switchagg
