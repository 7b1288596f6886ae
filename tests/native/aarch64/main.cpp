// loops SEED ELEMENTS: prints a digest and the name of each loop over elements.
#include <cstdio>
#include <cstdlib>

#include "switchagg/native/worker/loop_bench.h"

int main(int n, char** words) {
  if (n != 3) {
    std::fprintf(stderr, "loops SEED ELEMENTS\n");
    return 2;
  }
  switchagg::LoopBench bench(std::strtoull(words[1], nullptr, 10), std::strtoull(words[2], nullptr, 10));
  const auto loops = switchagg::LoopBench::loops();
  for (size_t i = 0; i < loops.size(); ++i)
    std::printf("%016llx %s\n", static_cast<unsigned long long>(bench.digest(i, 0)), loops[i].name);
  return 0;
}
