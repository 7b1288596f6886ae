// The choice among sets of kernels: a kernel file is compiled once for each instruction set, see CMakeLists.txt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace switchagg {

// The sets of a kernel file, the least instruction set first.
#ifdef SWITCHAGG_X86
#define KERNEL_SETS(name) {&name##_base, &name##_v3, &name##_v4}
#else
#define KERNEL_SETS(name) {&name##_base}
#endif
inline constexpr const char* kKernelLevels[] = {"base", "v3", "v4"};

// The number of instruction sets that this processor has.
inline size_t runnable_levels() {
#ifdef SWITCHAGG_X86
  return __builtin_cpu_supports("x86-64-v4") ? 3 : __builtin_cpu_supports("x86-64-v3") ? 2 : 1;
#else
  return 1;
#endif
}

// Index of the best of them. SWITCHAGG_KERNELS names a lower one, so that tests can compare them.
inline size_t chosen_level() {
  const size_t runnable = runnable_levels();
  const char* const asked = std::getenv("SWITCHAGG_KERNELS");
  if (!asked) return runnable - 1;
  const auto found = std::find(kKernelLevels, kKernelLevels + runnable, std::string_view(asked));
  return found == kKernelLevels + runnable ? 0 : static_cast<size_t>(found - kKernelLevels);
}

template <typename Kernels>
const Kernels& chosen_of(std::initializer_list<const Kernels*> sets) {
  return *sets.begin()[chosen_level()];
}

}  // namespace switchagg
