#include "switchagg/native/worker/modular.h"

#include <algorithm>
#include <memory>

namespace switchagg {
namespace {

size_t far(const GridKernels& k, const float* x, size_t n, double unit, DrawKey key, uint32_t at, int32_t* low) {
  return k.far_f32(x, n, unit, key, at, low);
}
size_t far(const GridKernels& k, const double* x, size_t n, double unit, DrawKey key, uint32_t at, int32_t* low) {
  return k.far_f64(x, n, unit, key, at, low);
}
void far_values(const GridKernels& k, const float* x, size_t n, double unit, DrawKey key, float* out) {
  k.far_values_f32(x, n, unit, key, 0, out);
}
void far_values(const GridKernels& k, const double* x, size_t n, double unit, DrawKey key, double* out) {
  k.far_values_f64(x, n, unit, key, 0, out);
}
int32_t settle(const GridKernels& k, const double* near, const int32_t* off, size_t n, double unit, double workers, float* sum,
               double* mean) {
  return k.settle_f32(near, off, n, unit, workers, sum, mean);
}
int32_t settle(const GridKernels& k, const double* near, const int32_t* off, size_t n, double unit, double workers, double* sum,
               double* mean) {
  return k.settle_f64(near, off, n, unit, workers, sum, mean);
}

// Whole words, of at most one check block of elements: a word's lanes may belong to two blocks, so each step takes as many
// elements as both divide.
struct Steps {
  explicit Steps(int bits) : lanes(32 / static_cast<size_t>(bits)), elements(kCheckBlock * lanes) {}
  size_t lanes, elements;
};

}  // namespace

template <typename T>
uint64_t to_residues(const T* x, size_t count, const Residues& how, DrawKey key, uint32_t* words) {
  const GridKernels& k = choose_grid_kernels();
  const Steps steps(how.bits);
  const auto low = std::make_unique<int32_t[]>(steps.elements);
  uint32_t* checks = words + (count + steps.lanes - 1) / steps.lanes;
  uint64_t unusable = 0;
  for (size_t at = 0; at < count; at += steps.elements) {
    const size_t n = std::min(steps.elements, count - at), used = (n + steps.lanes - 1) / steps.lanes;
    unusable += far(k, x + at, n, how.unit, key, static_cast<uint32_t>(at), low.get());
    std::fill(low.get() + n, low.get() + used * steps.lanes, 0);
    k.pack(low.get(), used, how.bits, words);
    words += used;
    for (size_t i = 0; i < n; i += kCheckBlock) {
      *checks++ = k.check(low.get() + i, nullptr, how.factors, std::min(kCheckBlock, n - i));
    }
  }
  return unusable;
}

template <typename T>
void residue_values(const T* x, size_t count, double unit, DrawKey key, T* out) {
  far_values(choose_grid_kernels(), x, count, unit, key, out);
}

template <typename T>
int32_t from_residues(const uint32_t* words, size_t count, const Residues& how, const double* reference, double workers,
                      T* sum, double* mean, uint8_t* wrong) {
  const GridKernels& k = choose_grid_kernels();
  const Steps steps(how.bits);
  const auto low = std::make_unique<int32_t[]>(steps.elements), off = std::make_unique<int32_t[]>(steps.elements);
  const auto near = std::make_unique<double[]>(steps.elements);
  const uint32_t* checks = words + (count + steps.lanes - 1) / steps.lanes;
  int32_t farthest = 0;
  for (size_t at = 0; at < count; at += steps.elements) {
    const size_t n = std::min(steps.elements, count - at), used = (n + steps.lanes - 1) / steps.lanes;
    k.expect(reference + at, n, workers / how.unit, near.get(), low.get());
    std::fill(low.get() + n, low.get() + used * steps.lanes, 0);
    k.peel_near(words, used, how.bits, low.get(), off.get());
    words += used;
    for (size_t i = 0; i < n; i += kCheckBlock) {
      const size_t size = std::min(kCheckBlock, n - i);
      *wrong++ = k.check(low.get() + i, off.get() + i, how.factors, size) != *checks++;
    }
    farthest = std::max(farthest, settle(k, near.get(), off.get(), n, how.unit, workers, sum + at, mean + at));
  }
  return farthest;
}

template uint64_t to_residues<float>(const float*, size_t, const Residues&, DrawKey, uint32_t*);
template uint64_t to_residues<double>(const double*, size_t, const Residues&, DrawKey, uint32_t*);
template void residue_values<float>(const float*, size_t, double, DrawKey, float*);
template void residue_values<double>(const double*, size_t, double, DrawKey, double*);
template int32_t from_residues<float>(const uint32_t*, size_t, const Residues&, const double*, double, float*, double*, uint8_t*);
template int32_t from_residues<double>(const uint32_t*, size_t, const Residues&, const double*, double, double*, double*, uint8_t*);

}  // namespace switchagg
