#include "switchagg/native/switch/rate_port.h"

#include <algorithm>
#include <cmath>

namespace switchagg {
namespace {

constexpr size_t kSpare = 4096;  // buffers kept for reuse

}  // namespace

RateLine::Link* RateLine::link_of(Endpoint peer, int64_t now) {
  const uint64_t key = uint64_t{peer.switch_port} << 48 | uint64_t{peer.ip} << 16 | peer.port;
  const auto found = links_.find(key);
  if (found != links_.end()) return &found->second;
  if (links_.size() >= kMaxRatedLinks) {
    if (now < look_after_) return nullptr;
    // An idle link is as good as a new one.
    std::erase_if(links_, [now](const auto& entry) {
      return entry.second.queue.empty() && entry.second.free_at <= now - kBurstNs;
    });
    if (links_.size() >= kMaxRatedLinks) {
      look_after_ = now + kBurstNs;
      return nullptr;
    }
  }
  Link& link = links_[key];
  link.peer = peer;
  link.free_at = now - kBurstNs;
  return &link;
}

void RateLine::pass(const Received& datagram, int64_t now, std::vector<Received>& out) {
  const uint64_t bytes = wire_bytes(datagram.size, datagram.peer);
  Link* const link = link_of(datagram.peer, now);
  if (!link) {
    ++counters_.dropped;
    return;
  }
  int64_t begin = link->free_at;
  double part = link->part;
  if (begin < now - kBurstNs) {
    begin = now - kBurstNs;
    part = 0;
  }
  const double took = part + 8e9 * static_cast<double>(bytes) / settings_.bits_per_second;
  const double whole = std::floor(took);
  const int64_t due = begin + static_cast<int64_t>(whole);
  const bool at_once = link->queue.empty() && due <= now;
  if (!at_once &&
      (link->queued + bytes > settings_.queue_bytes || held_bytes_ + datagram.size > kMaxQueuedBytes)) {
    ++counters_.dropped;
    return;
  }
  link->free_at = due;
  link->part = took - whole;
  ++counters_.packets;
  counters_.wire_bytes.add(bytes);
  if (at_once) {
    out.push_back(datagram);
    return;
  }
  ++counters_.queued;
  if (link->queue.empty()) waiting_.push_back(link);
  link->queue.push_back({copy_of(datagram), due});
  if (settings_.mark_bytes && link->queued > settings_.mark_bytes && mark(link->queue.back().bytes)) ++counters_.marked;
  link->queued += bytes;
  held_bytes_ += datagram.size;
}

void RateLine::release(int64_t now, std::vector<Received>& out) {
  std::erase_if(waiting_, [&](Link* link) {
    while (!link->queue.empty() && link->queue.front().due <= now) {
      const Bytes& bytes = left_.emplace_back(std::move(link->queue.front().bytes));
      link->queue.pop_front();
      const auto size = static_cast<uint32_t>(bytes.size());
      link->queued -= wire_bytes(size, link->peer);
      held_bytes_ -= size;
      out.push_back(Received::whole(bytes.data(), size, link->peer));
    }
    return link->queue.empty();
  });
}

int64_t RateLine::next_due() const {
  int64_t next = kNever;
  for (const Link* link : waiting_) next = std::min(next, link->queue.front().due);
  return next;
}

void RateLine::recycle() {
  for (Bytes& bytes : left_)
    if (spare_.size() < kSpare) spare_.push_back(std::move(bytes));
  left_.clear();
}

bool RateLine::mark(Bytes& bytes) const {
  const auto size = static_cast<uint32_t>(bytes.size());
  if (settings_.frames) return mark_ce(bytes.data(), size);
  if (!ecn_of({bytes.data(), size})) return false;
  take_up_ce(bytes.data(), size);
  return true;
}

RateLine::Bytes RateLine::copy_of(const Received& datagram) {
  Bytes bytes;
  if (!spare_.empty()) {
    bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  bytes.resize(datagram.size);
  datagram.copy_to(bytes.data());
  return bytes;
}

}  // namespace switchagg
