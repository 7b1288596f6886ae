// Python's view of grid.h and modular.h. Addresses are plain integers, as everywhere; the GIL is released.
#include <nanobind/nanobind.h>

#include "switchagg/native/worker/grid.h"
#include "switchagg/native/worker/modular.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {
namespace {

template <typename T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

uint64_t to_words_at(uintptr_t x, size_t count, bool wide, int bits, uintptr_t units, size_t block, int32_t top,
                     uint32_t first, uint32_t second, uintptr_t words) {
  const Grid grid{bits, block, at<const void>(units)};
  if (wide) return to_words(at<const double>(x), count, grid, top, {first, second}, at<uint32_t>(words));
  return to_words(at<const float>(x), count, grid, top, {first, second}, at<uint32_t>(words));
}

void from_words_at(uintptr_t words, size_t count, bool wide, int bits, uintptr_t units, size_t block, uintptr_t x) {
  const Grid grid{bits, block, at<const void>(units)};
  if (wide) return from_words(at<const uint32_t>(words), count, grid, at<double>(x));
  from_words(at<const uint32_t>(words), count, grid, at<float>(x));
}

uint64_t to_residues_at(uintptr_t x, size_t count, bool wide, int bits, double unit, uintptr_t factors, uint32_t first,
                        uint32_t second, uintptr_t words) {
  const Residues how{bits, unit, at<const uint32_t>(factors)};
  if (wide) return to_residues(at<const double>(x), count, how, {first, second}, at<uint32_t>(words));
  return to_residues(at<const float>(x), count, how, {first, second}, at<uint32_t>(words));
}

void residue_values_at(uintptr_t x, size_t count, bool wide, double unit, uint32_t first, uint32_t second, uintptr_t out) {
  if (wide) return residue_values(at<const double>(x), count, unit, {first, second}, at<double>(out));
  residue_values(at<const float>(x), count, unit, {first, second}, at<float>(out));
}

int32_t from_residues_at(uintptr_t words, size_t count, bool wide, int bits, double unit, uintptr_t factors,
                         uintptr_t reference, double workers, uintptr_t sum, uintptr_t mean, uintptr_t wrong) {
  const Residues how{bits, unit, at<const uint32_t>(factors)};
  const uint32_t* in = at<const uint32_t>(words);
  const double* near = at<const double>(reference);
  if (wide) return from_residues(in, count, how, near, workers, at<double>(sum), at<double>(mean), at<uint8_t>(wrong));
  return from_residues(in, count, how, near, workers, at<float>(sum), at<double>(mean), at<uint8_t>(wrong));
}

}  // namespace

void bind_grid(nb::module_& m) {
  m.def("quantize_lanes", to_words_at, "x"_a, "count"_a, "wide"_a, "bits"_a, "units"_a, "block"_a, "top"_a, "first"_a,
        "second"_a, "words"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("dequantize_lanes", from_words_at, "words"_a, "count"_a, "wide"_a, "bits"_a, "units"_a, "block"_a, "x"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "square_lanes",
      [](uintptr_t words, size_t count, int bits) { return square_of_words(at<const uint32_t>(words), count, bits); },
      "words"_a, "count"_a, "bits"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("to_residues", to_residues_at, "x"_a, "count"_a, "wide"_a, "bits"_a, "unit"_a, "factors"_a, "first"_a, "second"_a,
        "words"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("residue_values", residue_values_at, "x"_a, "count"_a, "wide"_a, "unit"_a, "first"_a, "second"_a, "out"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("from_residues", from_residues_at, "words"_a, "count"_a, "wide"_a, "bits"_a, "unit"_a, "factors"_a, "reference"_a,
        "workers"_a, "sum"_a, "mean"_a, "wrong"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace switchagg
