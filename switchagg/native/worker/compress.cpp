// Lanes of worker_lib/compress, with their bindings: rounding and packing in chunks that stay in the cache. Addresses are
// integers, and the GIL is released.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "switchagg/native/shared/kernel_choice.h"
#include "switchagg/native/shared/slot_kernels.h"
#include "switchagg/native/worker/compress_kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {

namespace {

constexpr size_t kChunkWords = 1024;
constexpr size_t kCheckBlock = 4096;  // elements for each check word of modular lanes
constexpr int kNarrow = 16;           // bits; wider lanes take a whole word

const CompressKernels& choose_kernels() {
  static const CompressKernels& best = chosen_of<CompressKernels>(KERNEL_SETS(compress_kernels));
  return best;
}

template <typename T>
const CompressLoops<T>& loops(const CompressKernels& kernels) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernels.f32;
  } else {
    return kernels.f64;
  }
}

template <typename T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Calls f(T{}) with the type of the elements.
template <typename F>
auto by_type(bool wide, F&& f) {
  return wide ? f(double{}) : f(float{});
}

// Calls f(first element, elements, words) for chunks of whole words.
template <typename F>
void chunks(size_t count, size_t lanes, size_t chunk_words, F&& f) {
  for (size_t from = 0; from < count; from += chunk_words * lanes) {
    const size_t n = std::min(chunk_words * lanes, count - from);
    f(from, n, (n + lanes - 1) / lanes);
  }
}

size_t lanes_of(int bits) { return bits > kNarrow ? 1 : 32 / static_cast<size_t>(bits); }

// Calls f(first element, elements, unit) for each run of elements in [from, from + n) that has one unit.
template <typename T, typename F>
void runs(uintptr_t units, size_t block, size_t from, size_t n, F f) {
  for (size_t i = from; i < from + n;) {
    const size_t end = std::min(from + n, (i / block + 1) * block);
    f(i, end - i, at<const T>(units)[i / block]);
    i = end;
  }
}

// Elements [i block, (i + 1) block) have the unit units[i], and become 0 if it is 0 or not finite. Returns how many
// elements exceeded `top` units.
uint64_t quantize_lanes(uintptr_t x, size_t count, bool wide, int bits, uintptr_t units, size_t block, int32_t top,
                        uint32_t first, uint32_t second, uintptr_t words) {
  const CompressKernels& k = choose_kernels();
  return by_type(wide, [&](auto zero) {
    using T = decltype(zero);
    const size_t lanes = lanes_of(bits);
    const auto q = std::make_unique<int32_t[]>(kChunkWords * lanes);
    uint32_t* out = at<uint32_t>(words);
    T limit = static_cast<T>(top);
    if (static_cast<double>(limit) > top) limit = std::nextafter(limit, T{0});  // a float may have been rounded up
    uint64_t cut = 0;
    chunks(count, lanes, kChunkWords, [&](size_t from, size_t n, size_t used) {
      runs<T>(units, block, from, n, [&](size_t i, size_t run, T unit) {
        if (unit > 0 && std::isfinite(unit)) {
          cut += loops<T>(k).round(at<const T>(x) + i, run, unit, limit, {first, second}, static_cast<uint32_t>(i),
                                   q.get() + (i - from));
        } else {
          std::fill_n(q.get() + (i - from), run, 0);
        }
      });
      std::fill(q.get() + n, q.get() + used * lanes, 0);
      if (lanes == 1) {
        copy_words(out, q.get(), used);
      } else {
        k.pack(q.get(), used, bits, out);
      }
      out += used;
    });
    return cut;
  });
}

void dequantize_lanes(uintptr_t words, size_t count, bool wide, int bits, uintptr_t units, size_t block, uintptr_t x) {
  const CompressKernels& k = choose_kernels();
  by_type(wide, [&](auto zero) {
    using T = decltype(zero);
    const size_t lanes = lanes_of(bits);
    const auto q = std::make_unique<int32_t[]>(kChunkWords * lanes);
    const uint32_t* in = at<const uint32_t>(words);
    chunks(count, lanes, kChunkWords, [&](size_t from, size_t n, size_t used) {
      if (lanes == 1) {
        copy_words(q.get(), in, used);
      } else {
        k.unpack(in, used, bits, q.get());
      }
      runs<T>(units, block, from, n, [&](size_t i, size_t run, T unit) {
        loops<T>(k).scale(q.get() + (i - from), run, unit, at<T>(x) + i);
      });
      in += used;
    });
  });
}

// The sum of squares of lanes of at most 16 bits.
uint64_t square_lanes(uintptr_t words, size_t count, int bits) {
  const CompressKernels& k = choose_kernels();
  const size_t lanes = lanes_of(bits);
  const auto q = std::make_unique<int32_t[]>(kChunkWords * lanes);
  const uint32_t* in = at<const uint32_t>(words);
  uint64_t sum = 0;
  chunks(count, lanes, kChunkWords, [&](size_t, size_t n, size_t used) {
    k.unpack(in, used, bits, q.get());
    sum += k.square(q.get(), n);
    in += used;
  });
  return sum;
}

// Modular lanes of 2 to 16 bits, then a check word for each kCheckBlock elements; `factors` has kCheckBlock of them.
// Returns how many elements were unusable. Chunks are of kCheckBlock words, so that lanes and check blocks divide them.
uint64_t to_residues(uintptr_t x, size_t count, bool wide, int bits, double unit, uintptr_t factors, uint32_t first,
                     uint32_t second, uintptr_t words) {
  const CompressKernels& k = choose_kernels();
  return by_type(wide, [&](auto zero) {
    using T = decltype(zero);
    const size_t lanes = 32 / static_cast<size_t>(bits);
    const auto low = std::make_unique<int32_t[]>(kCheckBlock * lanes);
    uint32_t* out = at<uint32_t>(words);
    uint32_t* checks = out + (count + lanes - 1) / lanes;
    uint64_t unusable = 0;
    chunks(count, lanes, kCheckBlock, [&](size_t from, size_t n, size_t used) {
      unusable += loops<T>(k).low_bits(at<const T>(x) + from, n, unit, {first, second}, static_cast<uint32_t>(from),
                                       low.get());
      std::fill(low.get() + n, low.get() + used * lanes, 0);
      k.pack(low.get(), used, bits, out);
      out += used;
      for (size_t i = 0; i < n; i += kCheckBlock)
        *checks++ = k.check(low.get() + i, nullptr, at<const uint32_t>(factors), std::min(kCheckBlock, n - i));
    });
    return unusable;
  });
}

// The values that one rank's words stand for.
void residue_values(uintptr_t x, size_t count, bool wide, double unit, uint32_t first, uint32_t second, uintptr_t out) {
  by_type(wide, [&](auto zero) {
    using T = decltype(zero);
    loops<T>(choose_kernels()).rounded(at<const T>(x), count, unit, {first, second}, 0, at<T>(out));
  });
}

// Sums and their means. Sets wrong[i] if the check word of block i does not match; returns the largest distance from the
// expected sums, in units.
int32_t from_residues(uintptr_t words, size_t count, bool wide, int bits, double unit, uintptr_t factors,
                      uintptr_t reference, double workers, uintptr_t sum, uintptr_t mean, uintptr_t wrong) {
  const CompressKernels& k = choose_kernels();
  return by_type(wide, [&](auto zero) {
    using T = decltype(zero);
    const size_t lanes = 32 / static_cast<size_t>(bits), chunk = kCheckBlock * lanes;
    const auto low = std::make_unique<int32_t[]>(chunk), off = std::make_unique<int32_t[]>(chunk);
    const auto near = std::make_unique<double[]>(chunk);
    const uint32_t* in = at<const uint32_t>(words);
    const uint32_t* checks = in + (count + lanes - 1) / lanes;
    uint8_t* mismatch = at<uint8_t>(wrong);
    int32_t farthest = 0;
    chunks(count, lanes, kCheckBlock, [&](size_t from, size_t n, size_t used) {
      k.expect(at<const double>(reference) + from, n, workers / unit, near.get(), low.get());
      std::fill(low.get() + n, low.get() + used * lanes, 0);
      k.unpack_near(in, used, bits, low.get(), off.get());
      in += used;
      for (size_t i = 0; i < n; i += kCheckBlock)
        *mismatch++ = k.check(low.get() + i, off.get() + i, at<const uint32_t>(factors), std::min(kCheckBlock, n - i)) !=
                      *checks++;
      farthest = std::max(farthest, loops<T>(k).sum_near(near.get(), off.get(), n, unit, workers, at<T>(sum) + from,
                                                         at<double>(mean) + from));
    });
    return farthest;
  });
}

// Randomized Hadamard transforms of blocks, a power of two of elements each: of the last, zeros fill the rest up. `out` has whole
// blocks.
void rotate_blocks(uintptr_t x, size_t count, bool wide, size_t block, double factor, uint32_t first, uint32_t second,
                   uintptr_t out) {
  by_type(wide, [&](auto zero) {
    using T = decltype(zero);
    const auto scratch = std::make_unique<T[]>(2 * block);
    for (size_t i = 0; i < count; i += block)
      loops<T>(choose_kernels()).rotate(at<const T>(x) + i, std::min(block, count - i), block, {first, second},
                                        static_cast<uint32_t>(i), static_cast<T>(factor), scratch.get(), at<T>(out) + i);
  });
}

void unrotate_blocks(uintptr_t y, size_t count, bool wide, size_t block, double factor, uint32_t first, uint32_t second,
                     uintptr_t x) {
  by_type(wide, [&](auto zero) {
    using T = decltype(zero);
    const auto scratch = std::make_unique<T[]>(2 * block);
    for (size_t i = 0; i < count; i += block)
      loops<T>(choose_kernels()).unrotate(at<const T>(y) + i, std::min(block, count - i), block, {first, second},
                                          static_cast<uint32_t>(i), static_cast<T>(factor), scratch.get(), at<T>(x) + i);
  });
}

}  // namespace

void bind_compress(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> release;
  m.def("quantize_lanes", quantize_lanes, "x"_a, "count"_a, "wide"_a, "bits"_a, "units"_a, "block"_a, "top"_a, "first"_a,
        "second"_a, "words"_a, release);
  m.def("dequantize_lanes", dequantize_lanes, "words"_a, "count"_a, "wide"_a, "bits"_a, "units"_a, "block"_a, "x"_a, release);
  m.def("square_lanes", square_lanes, "words"_a, "count"_a, "bits"_a, release);
  m.def("to_residues", to_residues, "x"_a, "count"_a, "wide"_a, "bits"_a, "unit"_a, "factors"_a, "first"_a, "second"_a,
        "words"_a, release);
  m.def("residue_values", residue_values, "x"_a, "count"_a, "wide"_a, "unit"_a, "first"_a, "second"_a, "out"_a, release);
  m.def("from_residues", from_residues, "words"_a, "count"_a, "wide"_a, "bits"_a, "unit"_a, "factors"_a, "reference"_a,
        "workers"_a, "sum"_a, "mean"_a, "wrong"_a, release);
  m.def("rotate_blocks", rotate_blocks, "x"_a, "count"_a, "wide"_a, "block"_a, "factor"_a, "first"_a, "second"_a, "out"_a,
        release);
  m.def("unrotate_blocks", unrotate_blocks, "y"_a, "count"_a, "wide"_a, "block"_a, "factor"_a, "first"_a, "second"_a, "x"_a,
        release);
}

}  // namespace switchagg
