// A Port around a Port that passes every datagram through a line, one in each direction. A Line does no I/O:
//
//      pass(datagram, now, out)    appends to `out` what leaves the line as this datagram enters it
//      release(now, out)           appends datagrams that were held back and are due
//      next_due()                  kNever: nothing is held back
//      recycle()                   ends the use of views handed out so far
//      kReleasesFirst              true: datagrams that are due leave before those that enter
//      kGrainNs                    the least time between two timer wake-ups of wait()
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "switchagg/native/shared/clock.h"
#include "switchagg/native/shared/port.h"

namespace switchagg {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

template <typename Line>
class LinePort : public Port {
 public:
  // `line` makes a line: line(0) that in, line(1) that out.
  template <typename F>
  LinePort(std::unique_ptr<Port> inner, F&& line) : inner_(std::move(inner)), in_(line(0)), out_(line(1)) {}

  bool wait(int64_t timeout_ns) override {
    int64_t now = now_ns();
    const int64_t deadline = timeout_ns < 0 || timeout_ns > kNever - now ? kNever : now + timeout_ns;
    for (;;) {
      out_.release(now, leaving_);
      transmit();
      if (in_.next_due() <= now) {
        inner_->wait(0);  // polls its sockets, so that busy links do not shut out new ones
        return true;
      }
      int64_t until = std::min(in_.next_due(), out_.next_due());
      if (until != kNever) until = std::max(until, woken_ + Line::kGrainNs);
      until = std::min(until, deadline);
      if (inner_->wait(until == kNever ? -1 : std::max<int64_t>(until - now, 0))) return true;
      woken_ = now = now_ns();
      if (now >= deadline && in_.next_due() > now) return false;
    }
  }

  void receive(std::vector<Received>& into) override {
    arrived_.clear();
    in_.recycle();
    inner_->receive(arrived_);
    const int64_t now = now_ns();
    if (Line::kReleasesFirst) in_.release(now, into);
    for (const Received& datagram : arrived_) in_.pass(datagram, now, into);
    if (!Line::kReleasesFirst) in_.release(now, into);
    out_.release(now, leaving_);  // here too: under steady traffic the loop does not call wait()
    transmit();
  }

  void send(std::span<const Endpoint> to, std::span<const Segment> segments) override {
    const int64_t now = now_ns();
    for (const Endpoint& peer : to) {
      if (Line::kReleasesFirst) out_.release(now, leaving_);
      for (const Segment& segment : segments)
        out_.pass(Received::whole(segment.data, segment.size, peer), now, leaving_);
    }
    if (!Line::kReleasesFirst) out_.release(now, leaving_);
    transmit();
  }

  void wake() override { inner_->wake(); }
  void abandon() override { inner_->abandon(); }
  Endpoint local() const override { return inner_->local(); }
  const PortCounters& counters() const override { return inner_->counters(); }

  const Line& in() const { return in_; }
  const Line& out() const { return out_; }

 private:
  // Sends datagrams for the same peer together.
  void transmit() {
    for (size_t at = 0; at < leaving_.size();) {
      const Endpoint peer = leaving_[at].peer;
      run_.clear();
      for (; at < leaving_.size() && leaving_[at].peer == peer; ++at)
        run_.push_back({leaving_[at].header, leaving_[at].size});
      inner_->send({&peer, 1}, run_);
    }
    leaving_.clear();
    out_.recycle();
  }

  std::unique_ptr<Port> inner_;
  Line in_, out_;
  std::vector<Received> arrived_, leaving_;
  std::vector<Segment> run_;
  int64_t woken_ = 0;  // the last time that the timer ended a wait
};

}  // namespace switchagg
