"""Sums without slots, step by step: what a worker can do next, whom it waits for, how it copies records."""

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

std::shared_ptr<SharedMemory> memory_of(uint32_t workers) {
  return std::make_shared<SharedMemory>(SharedMemory::make(SharedSums::bytes(workers), false));
}

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
  const auto memory = memory_of(2);
  SharedSums one(memory, 0, 2, 0);
  std::printf("%d", one.all_here());
  SharedSums two(memory, 0, 2, 1);
  std::printf("%d", one.all_here());
  for (SharedSums* each : {&one, &two}) each->start(6);
  go(one);  // there are four buffers
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
  go(two);
  std::printf(" %d%d %d|", one.waits(), two.waits(), static_cast<int>(one.taken()));
  // The first of two units is early at both, the second at one. They begin with the first buffer.
  one.note_early(7, 1);
  two.note_early(7, 2);
  std::printf("%d", static_cast<int>(one.first_of_call(false)));
  for (SharedSums* each : {&one, &two}) each->start_first(2, false, 7);
  go(one, 3);
  go(two, 3);
  go(one);
  go(two);
  go(one);
  std::printf(" %d%d|", one.waits(), two.waits());
  // The next call's unit was said to be early, but has no floats: all wait for it. The next has one unit.
  one.note_early(8, 1);
  two.note_early(8, 1);
  for (SharedSums* each : {&one, &two}) each->start_first(1, false, std::nullopt);
  one.start_first(1, true, std::nullopt);
  go(two);
  go(one);
  go(two);
  two.start_first(1, true, std::nullopt);
  go(two);
  go(one);
  go(two);
  std::printf(" %d%d|", one.waits(), two.waits());
  // Of a whole unit behind another each adds up all, and takes nothing.
  for (SharedSums* each : {&one, &two}) {
    each->start(1);
    each->start_first(1, true, std::nullopt, true);
  }
  go(one);
  go(two);
  go(one);
  go(two);
  std::printf(" %d%d|", one.waits(), two.waits());
  // So it is where it was put early, which is counted first; the last to add wakes the other, also if it
  // has started the next call.
  one.note_early(9, 1);
  two.note_early(9, 1);
  for (SharedSums* each : {&one, &two}) {
    each->start(1);
    each->start_first(1, true, 9, true);
  }
  std::printf("%d", one.all_is_put());
  go(two, 1);
  go(one);
  std::printf(" late %u", one.late());
  two.start_first(1, false, std::nullopt);
  go(two);
  go(one);
  one.start_first(1, false, std::nullopt);
  go(one);
  go(two);
  go(one);
  std::printf(" %d%d %d|", one.waits(), two.waits(), two.all_is_put());
  // Of two units that both have put the second is given up: nobody adds it.
  std::printf("%d", static_cast<int>(one.first_of_call(false)));
  for (SharedSums* each : {&one, &two}) each->start_first(2, false, std::nullopt);
  go(two);
  go(one, 3);
  one.stop(25);
  go(one);
  std::printf(" late %u", one.late());
  two.stop(25);
  go(two);
  go(one);
  std::printf(" %d%d|", one.waits(), two.waits());
  // Of a whole unit nothing is taken, even where another has added it and a third is not known to have put.
  const auto more = memory_of(3);
  SharedSums a(more, 0, 3, 0), b(more, 0, 3, 1), c(more, 0, 3, 2);
  for (SharedSums* each : {&a, &b, &c}) {
    each->note_early(1, 1);
    each->start_first(1, true, 1, true);
  }
  go(c);
  go(a, 1);
  a.start_first(1, true, std::nullopt);
  go(a);
  go(b);
  go(a);
  std::printf("|");
  // A worker that has not added up a whole unit keeps its record.
  const auto last = memory_of(2);
  SharedSums d(last, 0, 2, 0), e(last, 0, 2, 1);
  for (SharedSums* each : {&d, &e})
    for (int unit = 0; unit < 5; ++unit) each->start(1, true);
  go(e, 4);
  go(d);
  std::printf(" late %u|", d.late());
  // A worker that waits for the same as this one is not late.
  const auto third = memory_of(3);
  SharedSums f(third, 0, 3, 0), g(third, 0, 3, 1), h(third, 0, 3, 2);
  for (SharedSums* each : {&f, &g, &h}) each->start(6);
  go(f);
  go(h);
  std::printf(" late %u", f.late());
}
"""


def test_each_waits_for_the_others_and_for_buffers(tmp_path: Path) -> None:
    main = tmp_path / "main.cpp"
    main.write_text(_MAIN)
    units = [*product({"shared": ("shared_memory",)}), Unit(main)]
    program = build(tmp_path / "built", "sums", units, _FLAGS, (NATIVE,))
    found = subprocess.run([program], capture_output=True, text=True, check=True)
    assert found.stdout.split("|") == [
        "01 put0 put1 put2 put3; late 2 put0! add0!; late 0 add0! put4 take0; late 0"
        " put1! add1! put2! add2! put3! add3! put4! take0! add4!; late 1"
        " add1! add2! add3! add4! put5 take1 take2 take3 take4; put5! take1! add5! take2! take3! take4!;"
        " add5! take5; take5!; 00 6",
        "8 put8 add8! put9!; put8 put9 add8!; add9! take8; add9! take8! take9; take9!; 00",
        " put12; put12! add12! put13; add12! take12; put13! add13!; add13! take12! take13; take13!; 00",
        " put14 put15; put14! add14! put15! add15; add14! add15! take14; take14!; 00",
        "0 put16; put16! put17 add16! add17; late 2 add16! put17! add17! put20 take16; take16!; put20!"
        " add20!; add20! take20; take20!; 00 1",
        "24 put24 put25; put24! add24! put25!;; late 2 add24! take24; take24!; 00",
        " put0 add0; put0; put1; put0 add0; add0!;",
        " put0 put1 put2 put3; put0! add0 put1! add1 put2! add2 put3! add3; late 2",
        " put0 put1 put2 put3; put0 put1 put2 put3; late 2",
    ]


_COPIES: Final = """
#include <cstdio>
#include <cstring>
#include <vector>

#include "switchagg/native/worker/shared_copies.h"

namespace switchagg {

int64_t took[2];  // by a piece that is written through the cache, and past it
int64_t time_now = 0, looks = 0;
std::vector<char> ways;

void copy_words(void* to, const void* from, size_t words) {
  std::memcpy(to, from, 4 * words);
  ways.push_back('c');
  time_now += took[0];
}

const LaneKernels& choose_lane_kernels() {
  static const LaneKernels kernels{.copy_nontemporal = [](const float* from, size_t n, float* to) {
    std::memcpy(to, from, 4 * n);
    ways.push_back('p');
    time_now += took[1];
  }};
  return kernels;
}

}  // namespace switchagg

using namespace switchagg;

SharedCopies copies([] {
  ++looks;
  return time_now;
});
std::vector<float> from(5 * SharedCopies::kPiece);

// So many shares of so many words, by pieces of `piece`; prints the ways of the last one. What is plain goes
// through the cache, and is not timed.
void share(uint32_t reader, int times, size_t count, size_t piece = SharedCopies::kPiece) {
  while (times-- > 0) {
    std::vector<float> to(count + 1, -1);
    for (float& each : from) each += 1;
    ways.clear();
    copies.begin(reader);
    for (size_t at = 0; at < count; at += piece) {
      const bool plain = copies.is_plain(reader);
      const int64_t before = looks;
      copies.copy(reader, &from[at], std::min(count - at, piece), &to[at]);
      if (plain && (looks != before || ways.back() != 'c')) std::puts("not plain");
    }
    if (std::memcmp(to.data(), from.data(), 4 * count) != 0 || to[count] != -1) std::puts("wrong floats");
  }
  std::printf("%.*s%d ", static_cast<int>(ways.size()), ways.data(), copies.past());
}

int main() {
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  constexpr size_t kPiece = SharedCopies::kPiece, kLong = 3 * kPiece + 5;
  for (int64_t through : {200, 201, 201, 201, 199, 5000, 150, 150}) {  // of every fourth share, the first too
    took[0] = through;
    took[1] = 100;
    share(1, 1, kLong, kLong);
    share(1, 3, kLong);
    std::printf("| ");
  }
  took[0] = 1000;
  share(3, 5, kLong);
  share(2, 9, kPiece + 5);  // no two pieces are of one length
  share(3, 1, kPiece);
  share(4, 1, kPiece);  // one reader of four: results are not past
  std::printf("| ");
  copies.forget();
  const size_t packet = SharedCopies::kLeast;
  share(1, 4, 4 * packet, packet);
  share(1, 1, 4 * packet, packet);
  share(2, 5, 4 * packet, packet - 1);  // too short to be timed
  copies.forget();
  share(1, 1, kPiece);
}
"""


def test_records_are_written_past_the_cache_for_readers_for_whom_that_is_faster(tmp_path: Path) -> None:
    main = tmp_path / "main.cpp"
    main.write_text(_COPIES)
    program = build(tmp_path / "built", "copies", [Unit(main)], _FLAGS, (NATIVE,))
    found = subprocess.run([program], capture_output=True, text=True, check=True)
    assert found.stdout.split("| ") == [
        "cpcc0 cccc0 ",
        "cpcc0 cccc0 ",
        "cppp1 pppp1 ",
        "cppp1 pppp1 ",
        "cppp1 pppp1 ",
        "cppp1 pppp1 ",
        "cppp1 pppp1 ",
        "cpcc0 cccc0 ",
        "cppp1 cc1 p1 c0 ",
        "cccc0 cppp1 ccccc1 c0 ",
    ]
