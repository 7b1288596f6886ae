// Threads that use an engine: those that submit collectives and wait for them, the one in the background, and the end.
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "switchagg/native/shared/thread.h"
#include "switchagg/native/worker/engine.h"

namespace switchagg {

// The driver holds the mutex while it has work, and releases it between two steps if threads are counted here.
std::unique_lock<std::mutex> Engine::contend() {
  contenders_.fetch_add(1);
  std::unique_lock lock(mutex_);
  contenders_.fetch_sub(1);
  return lock;
}

void Engine::abandon() {
  abandoned_ = true;
  wipe_keys();
  for (const Stripe& each : stripes_) each.port->abandon();
  sums_.reset();
  forget_thread(thread_, mutex_, changed_);
}

bool Engine::submit(std::shared_ptr<Collective> work, int64_t timeout_ns, bool background, uint32_t generation) {
  const auto lock = contend();
  return add(std::move(work), timeout_ns, background, generation);
}

bool Engine::submit_at_once(std::shared_ptr<Collective> work, int64_t timeout_ns, uint32_t generation) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && !broken_ && add(std::move(work), timeout_ns, false, generation);
}

bool Engine::add(std::shared_ptr<Collective> work, int64_t timeout_ns, bool background, uint32_t generation) {
  if (generation != generation_) return false;
  work->index = calls_++;
  work->call.call_number = call_number(work->index);
  work->generation = generation;
  const int64_t now = clock_();
  work->submitted_at = now;
  if (broken_ || work->index >= failed_from_) {
    set_status(*work, broken_ ? Status::aborted : Status::lost);
    return true;
  }
  work->deadline = timeout_ns < 0 ? INT64_MAX : now + timeout_ns;
  queue_.push_back(std::move(work));
  if (busy_since_ < 0) busy_since_ = now;
  ++stats_.collectives;
  if (background) {
    begin_background();  // also while a thread drives, which may leave before this one is done
  }
  if (driving_) {
    wake();
  } else if (background) {
    changed_.notify_all();
  }
  return true;
}

Status Engine::wait(Collective& work, int64_t slice_ns) {
  auto lock = contend();
  const int64_t until = clock_() + slice_ns;
  while (work.status == Status::pending) {
    const int64_t now = clock_();
    if (now >= until) break;
    if (driving_ || !has_work()) {
      const bool idle = !driving_;
      if (idle && expire(now)) break;
      // No thread drives an engine that is halted or suspended, so waiters check the deadline.
      const int64_t limit = idle ? std::min(until, deadline()) : until;
      changed_.wait_for(lock, std::chrono::nanoseconds(limit - now));
      continue;
    }
    drive(lock, &work, until);
  }
  return work.status;
}

void Engine::begin_background() {
  background_wanted_ = true;
  if (!thread_ && background_thread_) thread_.emplace([this] { background(); });
}

void Engine::background() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (!background_wanted_ || driving_ || !has_work()) {
      if (queue_.empty() && !suspended_ && !replaying()) background_wanted_ = false;
      changed_.wait(lock);
      continue;
    }
    drive(lock, nullptr, INT64_MAX);
  }
}

void Engine::abort() {
  auto lock = contend();
  broken_ = true;
  // The driver holds the mutex while it uses buffers, and finds the queue empty when it locks the mutex again.
  break_all(Status::aborted);
  wake();
}

void Engine::close() {
  {
    auto lock = contend();
    closing_ = true;
    broken_ = true;
    pause_eventfd_ = -1;
    break_all(Status::aborted);
    wake();
    changed_.notify_all();
  }
  if (thread_) thread_->join();
  thread_.reset();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !driving_; });
  wipe_keys();
  for (const Stripe& each : stripes_) each.port->abandon();  // now, because other references may live on, and a switch has a limited number of links
  sums_.reset();
}

}  // namespace switchagg
