"""Workers that share slots know of each other who has work on their core, and on which cores fewer are."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.native.building import NATIVE, ROOT, Unit, build, product

_FLAGS: Final = ("-std=c++20", "-O1", f"-I{ROOT}")
_MAIN: Final = """
#include <cstdlib>
#include <cstdio>

#include "switchagg/native/shared/shared_slots.h"

using switchagg::SharedSlots;

int main() {
  const SharedSlots::Shape shape{4, 4, 16};
  auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(4096, shape.bytes()));
  for (size_t i = 0; i < shape.bytes(); ++i) memory[i] = 0;
  SharedSlots slots(memory, shape);
  const auto tell = [&] { std::printf("%d", slots.others_work(0)); };
  slots.note_core(0, 5);
  tell();  // the others' cores are not known
  slots.note_core(1, 5);
  tell();
  slots.asleep(1) = 1;
  tell();
  slots.asleep(1) = 0;
  slots.polls(1) = 1;
  tell();
  slots.note_core(2, 6);
  tell();
  slots.note_core(3, 5);
  tell();
  slots.polls(3) = 1;
  slots.polls(0) = 1;
  tell();
  const int cores[] = {4, 5, 6, 7};
  std::printf(" %d", slots.emptier(5, cores));  // three are awake there
  std::printf(" %d", slots.emptier(5, {cores + 1, 2}));
  slots.asleep(3) = 1;
  std::printf(" %d", slots.emptier(5, {cores + 1, 2}));  // two are, and one on core 6
  std::printf(" %d", slots.emptier(6, cores));
  std::free(memory);
}
"""


def test_who_works_on_a_core_and_where_fewer_are(tmp_path: Path) -> None:
    main = tmp_path / "main.cpp"
    main.write_text(_MAIN)
    units = [*product({"shared": ("shared_slots", "slot_kernels")}), Unit(main)]
    program = build(tmp_path / "built", "cores", units, _FLAGS, (NATIVE,))
    found = subprocess.run([program], capture_output=True, text=True, check=True)
    assert found.stdout == "0100010 7 6 -1 -1"
