// Rows of sparse tensors into a table of zeros and out of it, with their bindings (worker_lib/torch/sparse.py). A row is some
// blocks of the table, and a bitmap has a bit a block. Addresses are integers, and the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "switchagg/native/worker/plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace switchagg {

namespace {

using Shape = std::vector<uint64_t>;  // of the sparse dimensions, whose indices number the rows

// Calls f(row) for the rows that have a bit, in order.
template <typename F>
void each_row(uintptr_t bitmap, uint64_t blocks, uint64_t row_blocks, F&& f) {
  uint64_t next = 0;
  each_bit(reinterpret_cast<const uint32_t*>(bitmap), blocks, [&](uint64_t block) {
    if (block < next * row_blocks) return;
    const uint64_t row = row_blocks == 1 ? block : block / row_blocks;
    f(row);
    next = row + 1;
  });
}

struct Row {
  uint64_t number;
  size_t from;  // its place among the values
};

// Kinds of additions of rows that have one number.
enum class Adds : uint8_t { distinct, f32, f64, i32, i64 };  // distinct: there are none

void add_row(Adds adds, uint8_t* sum, const uint8_t* row, size_t bytes) {
  const auto add = [&]<typename T>(T) {
    auto* const to = reinterpret_cast<T*>(sum);
    const auto* const from = reinterpret_cast<const T*>(row);
    for (size_t i = 0; i < bytes / sizeof(T); ++i) to[i] += from[i];
  };
  switch (adds) {
    case Adds::distinct: return;
    case Adds::f32: return add(float{});
    case Adds::f64: return add(double{});
    case Adds::i32: return add(uint32_t{});
    case Adds::i64: return add(uint64_t{});
  }
}

// Puts rows into the table, and sets their bits. Rows of one number are added up in an order that depends on `indices` alone; it is
// that of PyTorch's `coalesce` only for fewer than 32,768 rows. `indices`: int64, (dimensions, count). Throws std::out_of_range,
// with nothing written, for an index outside the shape.
void put_rows(uintptr_t indices, size_t count, const Shape& shape, uintptr_t values, uintptr_t table, size_t row_bytes,
              uint64_t row_blocks, uintptr_t bitmap, int adds) {
  std::vector<Row> rows(count);
  const auto* index = reinterpret_cast<const int64_t*>(indices);
  for (const uint64_t size : shape)
    for (Row& row : rows) {
      if (static_cast<uint64_t>(*index) >= size)
        throw std::out_of_range("an index of a sparse tensor is " + std::to_string(*index) + "; accepted: 0 to " + std::to_string(size - 1));
      row.number = row.number * size + static_cast<uint64_t>(*index++);
    }
  for (size_t i = 0; i < count; ++i) rows[i].from = i;
  if (static_cast<Adds>(adds) != Adds::distinct)
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.number < b.number; });
  auto* words = reinterpret_cast<uint32_t*>(bitmap);
  const auto place = [&](size_t i) { return reinterpret_cast<uint8_t*>(table) + rows[i].number * row_bytes; };
  for (size_t i = 0; i < std::min(kFetched, count); ++i) fetch_block(place(i), row_bytes);
  for (size_t i = 0; i < count; ++i) {
    if (i + kFetched < count) fetch_block(place(i + kFetched), row_bytes);
    uint8_t* const to = place(i);
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(values) + rows[i].from * row_bytes;
    if (i > 0 && rows[i].number == rows[i - 1].number) {
      add_row(static_cast<Adds>(adds), to, from, row_bytes);
      continue;
    }
    std::memcpy(to, from, row_bytes);
    for (uint64_t block = rows[i].number * row_blocks; block < (rows[i].number + 1) * row_blocks; ++block)
      words[block / 32] |= 1u << block % 32;
  }
}

size_t count_rows(uintptr_t bitmap, uint64_t blocks, uint64_t row_blocks) {
  if (row_blocks == 1) return choose_lane_kernels().count_bits(reinterpret_cast<const uint32_t*>(bitmap), (blocks + 31) / 32);
  size_t count = 0;
  each_row(bitmap, blocks, row_blocks, [&](uint64_t) { ++count; });
  return count;
}

// Moves the `count` rows that have a bit out of the table, which is zero there then. Clears put_rows' bitmap too.
void take_rows(uintptr_t bitmap, uint64_t blocks, const Shape& shape, uintptr_t table, size_t row_bytes, uint64_t row_blocks,
               uintptr_t values, uintptr_t indices, size_t count, uintptr_t put) {
  std::memset(reinterpret_cast<void*>(put), 0, (blocks + 31) / 32 * sizeof(uint32_t));
  auto* to = reinterpret_cast<uint8_t*>(values);
  const auto place = [&](uint64_t row) { return reinterpret_cast<uint8_t*>(table) + row * row_bytes; };
  size_t seen = 0, number = 0;
  std::array<uint64_t, kFetched> next;  // rows whose memory is on its way
  const auto take = [&] {
    uint64_t row = next[number % kFetched];
    std::memcpy(to, place(row), row_bytes);
    std::memset(place(row), 0, row_bytes);
    to += row_bytes;
    for (size_t d = shape.size(); d-- > 0; row /= shape[d])
      reinterpret_cast<int64_t*>(indices)[d * count + number] = static_cast<int64_t>(row % shape[d]);
    ++number;
  };
  each_row(bitmap, blocks, row_blocks, [&](uint64_t row) {
    if (seen - number == kFetched) take();
    fetch_block(place(row), row_bytes);
    next[seen++ % kFetched] = row;
  });
  while (number < seen) take();
}

}  // namespace

void bind_sparse_rows(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> release;
  m.def("put_rows", put_rows, "indices"_a, "count"_a, "shape"_a, "values"_a, "table"_a, "row_bytes"_a, "row_blocks"_a, "bitmap"_a,
        "adds"_a, release);
  m.def("count_rows", count_rows, "bitmap"_a, "blocks"_a, "row_blocks"_a, release);
  m.def("take_rows", take_rows, "bitmap"_a, "blocks"_a, "shape"_a, "table"_a, "row_bytes"_a, "row_blocks"_a, "values"_a, "indices"_a,
        "count"_a, "put"_a, release);
}

}  // namespace switchagg
