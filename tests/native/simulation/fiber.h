// A program with a stack of its own, which stops where it waits and goes on when it is told to.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <utility>
#include <vector>

namespace simulation {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 256 << 10;

  explicit Fiber(std::function<void()> program) : program_(std::move(program)), stack_(take_stack()) {
    getcontext(&first_);
    first_.uc_stack.ss_sp = stack_;
    first_.uc_stack.ss_size = kStackBytes;
    first_.uc_link = nullptr;
    makecontext(&first_, reinterpret_cast<void (*)()>(&Fiber::enter), 0);
  }
  ~Fiber() { free_stacks().push_back(stack_); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the program until it waits or ends. Throws what the program has thrown.
  void go_on() {
    Fiber* const outer = std::exchange(current(), this);
    if (!_setjmp(outside_)) {
      if (begun_) _longjmp(own_, 1);
      begun_ = true;
      setcontext(&first_);
    }
    current() = outer;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  // In the program: returns to go_on().
  static void pause() {
    Fiber& fiber = *current();
    if (!_setjmp(fiber.own_)) _longjmp(fiber.outside_, 1);
  }
  bool ended() const { return ended_; }
  static uint64_t ends() { return ends_; }  // of programs so far

 private:
  static Fiber*& current() {
    static Fiber* fiber = nullptr;
    return fiber;
  }
  static std::vector<void*>& free_stacks() {
    static std::vector<void*> stacks;
    return stacks;
  }
  static void* take_stack() {
    auto& stacks = free_stacks();
    if (!stacks.empty()) {
      void* const stack = stacks.back();
      stacks.pop_back();
      return stack;
    }
    void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    return stack;
  }
  static void enter() {
    Fiber& fiber = *current();
    try {
      fiber.program_();
    } catch (...) {
      fiber.error_ = std::current_exception();
    }
    fiber.ended_ = true;
    ++ends_;
    pause();
  }

  static inline uint64_t ends_ = 0;

  std::function<void()> program_;
  void* const stack_;
  ucontext_t first_;       // where the program begins
  jmp_buf own_, outside_;  // from then on: swapcontext would make system calls
  std::exception_ptr error_;
  bool begun_ = false, ended_ = false;
};

}  // namespace simulation
