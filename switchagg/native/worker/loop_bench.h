// Each loop that touches every element, on data of a seed, at each instruction set: timed beside memcpy, for `switchagg bench loops`,
// and its results as a number, which is the same at every instruction set and on every kind of processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "switchagg/native/shared/port.h"
#include "switchagg/native/shared/slot_kernels.h"
#include "switchagg/native/worker/compress_kernels.h"
#include "switchagg/native/worker/lane_kernels.h"

namespace switchagg {

struct KernelSet {
  const LaneKernels& lanes;
  const CompressKernels& compress;
  const SlotKernels& slots;
};

class LoopBench {
 public:
  // Input of loops, of so many elements each, and their output.
  struct Memory {
    float *floats, *others;  // none is zero
    double* doubles;
    int32_t* lanes;          // of 20 bits and a sign
    int64_t* wide;           // of 50 bits and a sign
    uint32_t* words;         // the lanes, big-endian
    uint32_t* planes;        // three for each element: limbs of the wide ones
    uint16_t* halves;        // float16
    int32_t* bytes;          // lanes of 7 bits and a sign
    uint8_t* out;            // kOut bytes for each element
  };
  static constexpr size_t kOut = 16;

  struct Loop {
    const char* name;
    uint32_t bytes;  // that it reads and writes, for 16 elements
    uint64_t (*run)(const KernelSet& kernels, const Memory& memory, size_t n);
  };
  static std::span<const Loop> loops();
  static size_t levels();  // instruction sets of this processor, as kKernelLevels names them

  // `elements`: a multiple of 4,096.
  LoopBench(uint64_t seed, size_t elements);
  // Nanoseconds of so many runs of a loop, and of as many of a memcpy that reads and writes as many bytes together.
  std::pair<int64_t, int64_t> measure(size_t loop, size_t level, uint32_t runs);
  // Of all that a run of it has written and returned.
  uint64_t digest(size_t loop, size_t level);

 private:
  size_t elements_;
  PacketMemory in_, out_;
  Memory memory_;
};

}  // namespace switchagg
