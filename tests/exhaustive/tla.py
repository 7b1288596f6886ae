"""Runs TLC on docs/protocol.tla: `make tla` prints the tables of docs/verification.md.

TLC is not part of the project. It is found as `tlc` on PATH, or by TLA2TOOLS, the path of tla2tools.jar.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SPECIFICATION: Final = Path(__file__).parents[2] / "docs" / "protocol.tla"
VIOLATIONS: Final = {11: "deadlock", 12: "invariant", 13: "liveness"}  # TLC's exit statuses


@dataclass(frozen=True, slots=True)
class Model:
    """The constants of a model; `groups` are the workers at each leaf, none if all are at one switch.

    `spares` are the switches, or trees, that the job may go over to.
    """

    workers: str
    slots: int
    calls: int
    packets: int
    losses: int
    spares: int = 0
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a row of the table."""
        where = " + ".join(str(len(group)) for group in self.groups) or "one switch"
        sizes = self.slots, f"{self.calls} x {self.packets}", self.losses, self.spares
        return f"{len(self.workers)}, {where} | {' | '.join(map(str, sizes))}"

    def config(self) -> str:
        """The text of a .cfg."""
        invariants = "RightSums OwnResults Answered Replayed Agreement"
        constants = {
            "Workers": _set(self.workers),
            "Groups": "{" + ", ".join(map(_set, self.groups)) + "}",
            "P": self.slots,
            "Calls": self.calls,
            "Packets": self.packets,
            "Losses": self.losses,
            "Spares": self.spares,
            **{worker: worker for worker in self.workers},
        }
        lines = [f"    {name} = {value}" for name, value in constants.items()]
        head = f"SPECIFICATION Spec\nINVARIANTS {invariants}\nPROPERTY Completes\nCONSTANTS\n"
        return head + "\n".join(lines) + "\n"


def _set(workers: str) -> str:
    return "{" + ", ".join(workers) + "}"


TWO: Final = Model("ab", 2, 2, 2, 1)
THREE: Final = Model("abc", 2, 1, 2, 1)
LEAVES: Final = Model("abc", 2, 1, 2, 0, 0, ("ab", "c"))
FAILOVER: Final = Model("ab", 2, 2, 2, 0, 1)
BOTH: Final = Model("ab", 2, 1, 2, 1, 1)  # a rank and a switch are lost
STRANDED: Final = Model("abc", 2, 1, 1, 1, 1)  # where two are left, which may differ
MODELS: Final = [
    Model("ab", 2, 4, 2, 0),
    Model("ab", 4, 4, 2, 0),
    TWO,
    Model("ab", 4, 3, 2, 1),
    THREE,
    Model("abc", 2, 2, 2, 1),
    Model("abc", 2, 1, 1, 2),
    Model("ab", 2, 2, 2, 1, 0, ("a", "b")),
    Model("abc", 2, 1, 2, 1, 0, ("ab", "c")),
    Model("abcd", 2, 1, 2, 0, 0, ("ab", "cd")),
    FAILOVER,
    Model("ab", 4, 2, 2, 0, 1),
    Model("ab", 2, 2, 2, 0, 2),
    Model("abc", 2, 1, 2, 0, 1),
    BOTH,
    STRANDED,
    Model("ab", 2, 2, 2, 0, 1, ("a", "b")),
]
MISTAKES: Final[dict[str, tuple[Model, str, str]]] = {
    "previous-round-taken": (
        Model("ab", 2, 4, 2, 0),
        "[] packet.q = old.q /\\ sender",
        "[] packet.q \\in {old.q, old.q - P} /\\ sender",
    ),
    "stale-round-taken": (TWO, "CASE packet.q = old.q + P ->", "CASE packet.q # old.q ->"),
    "seen-not-looked-at": (TWO, "packet.q = old.q /\\ sender \\notin old.seen", "packet.q = old.q"),
    "seen-kept-in-a-new-round": (
        TWO, "seen |-> {sender}, words |-> packet.words", "seen |-> old.seen, words |-> packet.words",
    ),
    "words-kept-in-a-new-round": (
        TWO, "words |-> packet.words, added", "words |-> old.words \\union packet.words, added",
    ),
    "result-before-the-last": (TWO, "full == new.seen = Senders(s, members[now])", "full == TRUE"),
    "no-init": (TWO, "[q |-> from + ((i - from) % P) - P, seen", "[q |-> from + ((i - from) % P), seen"),
    "window-of-P": (Model("ab", 2, 4, 2, 0), "q - P \\div 2", "q - P"),
    "window-of-P/2+1": (Model("ab", 4, 4, 2, 0), "q - P \\div 2", "q - P \\div 2 - 1"),
    "leaf-takes-its-sum-for-the-result": (LEAVES, "IF full /\\ s = Root THEN", "IF full THEN"),
    "leaf-sends-before-all-workers-have": (
        LEAVES, "IF full /\\ s # Root THEN", "IF s # Root THEN",
    ),
    "former-packet-taken": (
        TWO, "Admitted(w, g) == g = now /\\ w \\in", "Admitted(w, g) == w \\in",
    ),
    "former-result-taken": (TWO, "    /\\ result.g = at[w]\n", ""),
    "fence-completes-rounds": (
        TWO, "= Senders(s, members[now])", "= Senders(s, members[now] \\ fenced)",
    ),
    "least-number-decides": (
        THREE,
        "agreed' = Max({said[w] : w \\in members[now]})",
        "agreed' = -Max({-said[w] : w \\in Survivors})",
    ),
    "one-rank-decides": (
        THREE, "/\\ \\A w \\in Survivors : said[w] >= 0", "/\\ \\E w \\in Survivors : said[w] >= 0",
    ),
    "lacking-results-not-fetched": (
        THREE, "/\\ limit' = [limit EXCEPT ![w] = agreed]", "/\\ limit' = limit",
    ),
    "goes-on-past-the-agreed-number": (
        THREE, "![w] = agreed]", "![w] = agreed + 1]",
    ),
    "removed-before-all-are-done": (
        THREE,
        "\\A w \\in Survivors : mode[w] = \"done\" /\\ at[w] = now",
        "\\E w \\in Survivors : mode[w] = \"done\" /\\ at[w] = now",
    ),
    "failover-a-packet-too-late": (
        FAILOVER, "Min({Lowest(w) : w \\in members[now]})", "Min({Lowest(w) : w \\in members[now]}) + 1",
    ),
    "failover-greatest-number-decides": (
        FAILOVER, "Min({Lowest(w) : w \\in members[now]})", "Max({Lowest(w) : w \\in members[now]})",
    ),
    "failover-moved-before-all-have-reported": (
        FAILOVER, "\\A w \\in members[now] : mode[w] = \"suspended\"",
        "\\E w \\in members[now] : mode[w] = \"suspended\"",
    ),
    "failover-sequence-numbers-of-packet-0": (
        FAILOVER, "slot' = Initialised(present, from)", "slot' = Initialised(present, 0)",
    ),
    "failover-nobody-told-of-the-death": (FAILOVER, "/\\ moving /\\ mode[w] = \"run\"", "/\\ mode[w] = \"\""),
    "failover-former-results-open-the-window": (
        FAILOVER, "![w] = 0 .. first[now] - 1]", "![w] = taken[w]]",
    ),
    "failover-former-result-taken": (FAILOVER, "    /\\ result.g = at[w]\n", ""),
    "failover-needs-nothing-and-sends-nothing": (
        FAILOVER, "/\\ \\E q \\in 0 .. End(w) - 1 : q \\notin held[w]", "/\\ FALSE",
    ),
    "failover-former-results-make-sure": (
        STRANDED, "Packets - 1 \\subseteq held[w]", "Packets - 1 \\subseteq taken[w]",
    ),
    "failover-sure-of-fewer-is-enough": (STRANDED, "{w \\in sure : said[w] = agreed} = {}", "sure = {}"),
    "resumed-a-packet-late": (TWO, "[held EXCEPT ![w] = {}]", "[held EXCEPT ![w] = {0}]"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run of TLC: its exit status, distinct states, depth, and seconds."""

    status: int
    states: int
    depth: int
    seconds: float
    output: str


def find_tlc() -> list[str] | None:
    """Returns the command that runs TLC; None if it is not installed."""
    if path := os.environ.get("TLA2TOOLS"):
        return ["java", "-XX:+UseParallelGC", "-cp", path, "tlc2.TLC"]
    return [found] if (found := shutil.which("tlc")) else None


def check(tlc: list[str], model: Model, right: str = "", wrong: str = "") -> Outcome:
    """Checks a model of the specification, with one text of it replaced by another."""
    text = SPECIFICATION.read_text()
    assert not right or text.count(right) == 1, f"{right!r} occurs {text.count(right)} times"
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, SPECIFICATION.name).write_text(text.replace(right, wrong) if right else text)
        Path(folder, "model.cfg").write_text(model.config())
        # One worker searches breadth first, so that the way to what is wrong is the shortest.
        run = subprocess.run(
            [*tlc, "-workers", "1", "-config", "model.cfg", SPECIFICATION.name],
            cwd=folder, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
    states = [
        int(number.replace(",", "")) for number in re.findall(r"([\d,]+) distinct states found", run.stdout)
    ]
    depth = re.findall(r"depth of the complete state graph search is (\d+)", run.stdout)
    way = re.findall(r"^State (\d+):", run.stdout, re.MULTILINE)
    last = int(depth[-1]) if depth else len(way)
    return Outcome(run.returncode, states[-1] if states else 0, last, time.perf_counter() - begun, run.stdout)


def main() -> None:
    """Checks all models, and that each mistake is found."""
    tlc = find_tlc()
    if tlc is None:
        raise SystemExit("TLC is not here: set TLA2TOOLS to the path of tla2tools.jar, or put tlc on PATH")
    print("| workers | P | collectives x packets | lost ranks | spare switches | states | depth | seconds |")
    print("| --- " * 8 + "|")
    for model in MODELS:
        found = check(tlc, model)
        if found.status:
            raise SystemExit(found.output)
        print(f"| {model} | {found.states:,} | {found.depth} | {found.seconds:.0f} |", flush=True)
    print("\n| mistake | found by | after |\n| --- | --- | --- |")
    for name, given in MISTAKES.items():
        found = check(tlc, *given)
        if found.status not in VIOLATIONS:
            raise SystemExit(f"{name} was not found: {found.output}")
        print(f"| {name} | {VIOLATIONS[found.status]} | {max(found.depth - 1, 0)} steps |", flush=True)


if __name__ == "__main__":
    main()
