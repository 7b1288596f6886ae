// Rows of sparse tensors into a table of zeros and out of it, with their bindings (worker_lib/torch/sparse.py). A row is some
// blocks of the table, and a bitmap has a bit a block. Addresses are integers, and the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {

namespace {

using Shape = std::vector<uint64_t>;  // of the sparse dimensions, whose indices number the rows

// Calls f(row) for the rows that have a bit, in order.
template <typename F>
void each_row(uintptr_t bitmap, uint64_t blocks, uint64_t row_blocks, F&& f) {
  const auto* words = reinterpret_cast<const uint32_t*>(bitmap);
  uint64_t next = 0;
  for (uint64_t w = 0; w < (blocks + 31) / 32; ++w)
    for (uint32_t rest = words[w]; rest; rest &= rest - 1) {
      const uint64_t block = w * 32 + static_cast<uint64_t>(std::countr_zero(rest));
      const uint64_t row = block / row_blocks;
      if (block >= blocks || row < next) continue;
      f(row);
      next = row + 1;
    }
}

// Copies rows into the table, and sets their bits. `indices`: int64, (dimensions, count). Throws std::out_of_range, with nothing
// written, for an index outside the shape.
void put_rows(uintptr_t indices, size_t count, const Shape& shape, uintptr_t values, uintptr_t table, size_t row_bytes,
              uint64_t row_blocks, uintptr_t bitmap) {
  std::vector<uint64_t> rows(count);
  const auto* index = reinterpret_cast<const int64_t*>(indices);
  for (const uint64_t size : shape)
    for (uint64_t& row : rows) {
      if (static_cast<uint64_t>(*index) >= size)
        throw std::out_of_range("an index of a sparse tensor is " + std::to_string(*index) + "; accepted: 0 to " + std::to_string(size - 1));
      row = row * size + static_cast<uint64_t>(*index++);
    }
  auto* words = reinterpret_cast<uint32_t*>(bitmap);
  const auto* from = reinterpret_cast<const uint8_t*>(values);
  for (const uint64_t row : rows) {
    std::memcpy(reinterpret_cast<uint8_t*>(table) + row * row_bytes, from, row_bytes);
    from += row_bytes;
    for (uint64_t block = row * row_blocks; block < (row + 1) * row_blocks; ++block) words[block / 32] |= 1u << block % 32;
  }
}

size_t count_rows(uintptr_t bitmap, uint64_t blocks, uint64_t row_blocks) {
  size_t count = 0;
  each_row(bitmap, blocks, row_blocks, [&](uint64_t) { ++count; });
  return count;
}

// Moves the `count` rows that have a bit out of the table, which is zero there then.
void take_rows(uintptr_t bitmap, uint64_t blocks, const Shape& shape, uintptr_t table, size_t row_bytes, uint64_t row_blocks,
               uintptr_t values, uintptr_t indices, size_t count) {
  auto* to = reinterpret_cast<uint8_t*>(values);
  size_t number = 0;
  each_row(bitmap, blocks, row_blocks, [&](uint64_t row) {
    uint8_t* const from = reinterpret_cast<uint8_t*>(table) + row * row_bytes;
    std::memcpy(to, from, row_bytes);
    std::memset(from, 0, row_bytes);
    to += row_bytes;
    for (size_t d = shape.size(); d-- > 0; row /= shape[d])
      reinterpret_cast<int64_t*>(indices)[d * count + number] = static_cast<int64_t>(row % shape[d]);
    ++number;
  });
}

}  // namespace

void bind_sparse_rows(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> release;
  m.def("put_rows", put_rows, "indices"_a, "count"_a, "shape"_a, "values"_a, "table"_a, "row_bytes"_a, "row_blocks"_a, "bitmap"_a,
        release);
  m.def("count_rows", count_rows, "bitmap"_a, "blocks"_a, "row_blocks"_a, release);
  m.def("take_rows", take_rows, "bitmap"_a, "blocks"_a, "shape"_a, "table"_a, "row_bytes"_a, "row_blocks"_a, "values"_a, "indices"_a,
        "count"_a, release);
}

}  // namespace switchagg
