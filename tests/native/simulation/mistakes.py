"""Mistakes in the product, each of which the simulation must find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mistake:
    """A change of one source file.

    Attributes:
        name: unique.
        file: below `switchagg/native`; empty: none.
        right, wrong: a text that is there once, and what it becomes.
        options: of the simulation.
    """

    name: str
    file: str = ""
    right: str = ""
    wrong: str = ""
    options: tuple[str, ...] = ()

    def put_into(self, source: str) -> str:
        """Returns the source with the mistake.

        Raises:
            ValueError: the right text is not there once.
        """
        if source.count(self.right) != 1:
            raise ValueError(
                f"{self.name}: {self.right!r} is {source.count(self.right)} times in {self.file}"
            )
        return source.replace(self.right, self.wrong)


_SLOTS: Final = "switch/slot_table.cpp"
_RULES: Final = "shared/shared_slots.cpp"
_WINDOW: Final = "worker/window.cpp"
_ENGINE: Final = "worker/engine.cpp"

MISTAKES: Final = (
    Mistake("no-stale-test", _RULES, "if (!fresh && seq != slot.seq) return {Outcome::stale};", ""),
    Mistake("seen-forgotten", _RULES, "(fresh ? 0 : slot.seen) | bit", "bit"),
    Mistake(
        "repeat-added-twice", _RULES, "if (!fresh && slot.seen & bit)", "if (!fresh && slot.seen == full)"
    ),
    Mistake("words-kept-in-a-new-round", _RULES, "filled = !fresh && slot.filled;", "filled = slot.filled;"),
    Mistake("token-not-looked-at", _SLOTS, "worker->token != header.token", "false"),
    Mistake(
        "slot-not-looked-at",
        _SLOTS,
        "if (header.slot != job.base + index) {\n    if",
        "if (false) {\n    if",
    ),
    Mistake(
        "sequence-number-that-does-not-wrap",
        _RULES,
        "fresh = seq == slot.seq + slots;",
        "fresh = seq == uint64_t{slot.seq} + slots;",
    ),
    Mistake(
        "result-before-the-last",
        _RULES,
        "return {outcome, true, seen == full,",
        "return {outcome, true, __builtin_popcount(seen) + 1 >= __builtin_popcount(full),",
    ),
    Mistake(
        "leaf-sends-no-repeat-up",
        _SLOTS,
        "      verdict.to = job.parent->endpoint;\n      verdict.reply",
        "      return dropped(DropReason::duplicate);\n      verdict.reply",
    ),
    Mistake("no-init", options=("--without-init",)),
    Mistake("window-of-P", _WINDOW, "span_(slots / 2)", "span_(slots)"),
    Mistake("result-taken-twice", _WINDOW, "  if (e.done) return false;\n", ""),
    Mistake(
        "batches-lost-for-ever",
        _WINDOW,
        "most = std::max(1u, train() >> (std::max(unanswered_, kWholeBatches) - kWholeBatches));",
        "",
    ),
    Mistake("timer-forgotten", _ENGINE, "timer < 0 ? deadline : std::min(timer, deadline)", "deadline"),
    Mistake("result-token-not-looked-at", _ENGINE, "h.token != at.result_token || ", ""),
    Mistake(
        "repeat-of-a-skip-with-words",
        _ENGINE,
        "to[wire::kFlagsOffset] |= wire::kFlagRetransmission;",
        "to[wire::kFlagsOffset] |= wire::kFlagRetransmission | wire::kFlagPayload;",
    ),
    Mistake(
        "result-of-another-round-taken",
        _ENGINE,
        "is_new = ahead >= 0 && stripe.window.on_result(number);",
        "is_new = stripe.window.on_result(stripe.window.base() + (static_cast<uint64_t>(ahead) % at.slots));",
    ),
    Mistake(
        "answer-of-the-neighbour",
        "switch/loop.cpp",
        "if (verdict.action == Action::unicast) answer(verdict);",
        "if (verdict.action == Action::unicast) verdict.slot ^= 1, answer(verdict);",
    ),
)
