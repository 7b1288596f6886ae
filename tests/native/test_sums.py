"""Sums without packets, step by step: the next thing that a worker can do, and those that it waits for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.native.building import NATIVE, ROOT, Unit, build, product

_FLAGS: Final = ("-std=c++20", "-O1", f"-I{ROOT}")
_MAIN: Final = """
#include <cstdio>
#include <memory>

#include "switchagg/native/shared/shared_sums.h"

using switchagg::SharedMemory;
using switchagg::SharedSums;

// Does what a worker can do next, at most so many times; prints it, and "!" if it wakes the others.
void go(SharedSums& sums, int times = 100) {
  for (; times > 0; --times) {
    const auto next = sums.next();
    if (!next) break;
    const char* const names[] = {"put", "add", "take"};
    std::printf(" %s%d", names[static_cast<int>(next->kind)], static_cast<int>(next->unit));
    if (sums.did(*next)) std::printf("!");
  }
  std::printf(";");
}

int main() {
  const auto memory = std::make_shared<SharedMemory>(SharedMemory::make(SharedSums::bytes(2), false));
  SharedSums one(memory, 0, 2, 0);
  std::printf("%d", one.all_here());
  SharedSums two(memory, 0, 2, 1);
  std::printf("%d", one.all_here());
  for (SharedSums* each : {&one, &two}) each->start(3 * SharedSums::kUnit - 5);
  go(one);  // two buffers
  std::printf(" late %u", one.late());
  go(two, 2);
  std::printf(" late %u", one.late());
  go(one);
  std::printf(" late %u", two.late());
  go(two);
  std::printf(" late %u", two.late());
  go(one);
  go(two);
  go(one);
  std::printf(" %d%d %d", one.waits(), two.waits(), static_cast<int>(one.taken()));
  // Of two units that both have put the second is given up: nobody adds it.
  for (SharedSums* each : {&one, &two}) each->start(2 * SharedSums::kUnit);
  go(two);
  go(one, 3);
  one.stop(4);
  go(one);
  std::printf(" late %u", one.late());
  two.stop(4);
  go(two);
  go(one);
  std::printf(" %d%d", one.waits(), two.waits());
}
"""


def test_each_waits_for_the_others_and_for_buffers(tmp_path: Path) -> None:
    main = tmp_path / "main.cpp"
    main.write_text(_MAIN)
    units = [*product({"shared": ("shared_memory",)}), Unit(main)]
    program = build(tmp_path / "built", "sums", units, _FLAGS, (NATIVE,))
    found = subprocess.run([program], capture_output=True, text=True, check=True)
    assert found.stdout == (
        "01 put0 put1; late 2 put0! add0!; late 0 add0! take0; late 0 put1! add1! take0! put2; late 1"
        " add1! put2! add2! take1; add2! take1! take2; take2!; 00 3"
        " put3 put4; put3! add3! put4!;; late 2 add3! take3; take3!; 00"
    )
