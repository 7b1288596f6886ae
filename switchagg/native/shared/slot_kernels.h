// The arithmetic on the words of packets: loops that are compiled once for each instruction set.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace switchagg {

// `to` and `from` are `words` big-endian 32-bit words at any alignment; they do not overlap.
using WordKernel = void (*)(uint8_t* to, const uint8_t* from, size_t words);

// The same of `count` >= 2 runs of words, each read once. `to` may be one of them.
using WordsKernel = void (*)(uint8_t* to, const uint8_t* const* from, size_t count, size_t words);

struct SlotKernels {
  WordKernel copy;      // to = from
  WordKernel add;       // to += from, modulo 2^32
  WordKernel or_words;  // to |= from
  WordsKernel add_all;  // to = the sum of all
  WordsKernel or_all;
};

extern const SlotKernels slot_kernels_base;
extern const SlotKernels slot_kernels_v3;  // x86-64 with AVX2
extern const SlotKernels slot_kernels_v4;  // x86-64 with AVX-512

const SlotKernels& slot_kernels();            // the fastest set that this processor runs
const SlotKernels& untouched_slot_kernels();  // do nothing: the no-op baseline of benchmarks
void copy_words(void* to, const void* from, size_t words);    // by them

}  // namespace switchagg
