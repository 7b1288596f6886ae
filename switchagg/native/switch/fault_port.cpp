#include "switchagg/native/switch/fault_port.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace switchagg {
namespace {

constexpr uint64_t kHeldOverhead = 128;  // what a held datagram costs besides its bytes

uint64_t threshold(double probability) {
  if (!(probability > 0)) return 0;
  if (probability >= 1) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(std::ldexp(probability, 64));
}

}  // namespace

FaultLine::FaultLine(const FaultSettings& settings, uint64_t direction)
    : settings_(settings), loss_(threshold(settings.loss)), duplicate_(threshold(settings.duplicate)),
      reorder_(threshold(settings.reorder)), corrupt_(threshold(settings.corrupt)) {
  std::seed_seq fates{settings.seed & 0xFFFFFFFF, settings.seed >> 32, direction, uint64_t{0}};
  std::seed_seq times{settings.seed & 0xFFFFFFFF, settings.seed >> 32, direction, uint64_t{1}};
  random_.seed(fates);
  jitter_.seed(times);
}

void FaultLine::pass(const Received& datagram, int64_t now, std::vector<Received>& out) {
  const bool lost = draw(loss_), duplicated = draw(duplicate_), reordered = draw(reorder_), corrupted = draw(corrupt_);
  const uint64_t which = random_();  // the bit to flip, and how many later datagrams to wait for
  if (lost) {
    ++counters_.lost;
    return;
  }
  Received view = datagram;
  if (corrupted && datagram.size) {
    ++counters_.corrupted;
    Bytes& copy = left_.emplace_back(datagram.size);
    datagram.copy_to(copy.data());
    const uint64_t bit = (which >> 3) % (8 * uint64_t{datagram.size});
    copy[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    view = Received::whole(copy.data(), datagram.size, datagram.peer);
  }
  if (duplicated) {
    ++counters_.duplicated;
    emit(view, now, out);
  }
  const size_t earlier = reordering_.size();
  if (reordered && hold(reordering_, view, now + kLongestReorderNs, 1 + which % 8))
    ++counters_.reordered;
  else if (!reordered)
    emit(view, now, out);
  size_t kept = 0;
  for (size_t i = 0; i < reordering_.size(); ++i) {
    if (i < earlier && --reordering_[i].passes == 0) {
      emit(std::move(reordering_[i]), now, out);
    } else {
      if (kept != i) reordering_[kept] = std::move(reordering_[i]);
      ++kept;
    }
  }
  reordering_.erase(reordering_.begin() + static_cast<ptrdiff_t>(kept), reordering_.end());
}

void FaultLine::release(int64_t now, std::vector<Received>& out) {
  for (size_t i = 0; i < reordering_.size();) {
    if (reordering_[i].due > now) {
      ++i;
      continue;
    }
    Held held = std::move(reordering_[i]);
    reordering_.erase(reordering_.begin() + static_cast<ptrdiff_t>(i));
    emit(std::move(held), now, out);
  }
  while (!delayed_.empty() && delayed_.front().due <= now) {
    std::pop_heap(delayed_.begin(), delayed_.end(), Later{});
    leave(std::move(delayed_.back()), out);
    delayed_.pop_back();
  }
}

int64_t FaultLine::next_due() const {
  int64_t next = delayed_.empty() ? kNever : delayed_.front().due;
  for (const Held& held : reordering_) next = std::min(next, held.due);
  return next;
}

bool FaultLine::hold(std::vector<Held>& in, const Received& datagram, int64_t due, uint32_t passes) {
  if (held_bytes_ + datagram.size + kHeldOverhead > kHeldBytes) {
    ++counters_.overflowed;
    return false;
  }
  held_bytes_ += datagram.size + kHeldOverhead;
  Bytes bytes(datagram.size);
  datagram.copy_to(bytes.data());
  in.push_back({std::move(bytes), datagram.peer, due, order_++, passes});
  return true;
}

int64_t FaultLine::due(int64_t now) {
  ++counters_.delayed;
  const int64_t more =
      settings_.jitter_ns > 0 ? static_cast<int64_t>(jitter_() % (static_cast<uint64_t>(settings_.jitter_ns) + 1)) : 0;
  return now + settings_.delay_ns + more;
}

void FaultLine::emit(const Received& datagram, int64_t now, std::vector<Received>& out) {
  if (!delays())
    out.push_back(datagram);
  else if (hold(delayed_, datagram, due(now), 0))
    std::push_heap(delayed_.begin(), delayed_.end(), Later{});
}

void FaultLine::emit(Held&& held, int64_t now, std::vector<Received>& out) {
  if (!delays()) return leave(std::move(held), out);
  held.due = due(now);
  held.order = order_++;
  delayed_.push_back(std::move(held));
  std::push_heap(delayed_.begin(), delayed_.end(), Later{});
}

void FaultLine::leave(Held&& held, std::vector<Received>& out) {
  held_bytes_ -= held.bytes.size() + kHeldOverhead;
  const Bytes& bytes = left_.emplace_back(std::move(held.bytes));
  out.push_back(Received::whole(bytes.data(), static_cast<uint32_t>(bytes.size()), held.peer));
}

}  // namespace switchagg
