"""Finds the errors in the lines that an episode's ranks printed. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .plan import Episode, Event

Lines = Sequence[Mapping[str, Any]]


def faults(episode: Episode, said: Mapping[int, Lines], *, struck: bool) -> list[str]:
    """Returns a sentence for each error.

    Args:
        said: each rank's lines, in order.
        struck: true if the victim was killed or stopped before it had finished.
    """
    found = [*_wrong_sums(said), *_ends(episode, said, struck)]
    if episode.lane.on_loss == "shrink":
        found += _uneven(episode, said, struck)
    return found


def _of(lines: Lines, kind: str) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


def _wrong_sums(said: Mapping[int, Lines]) -> Iterator[str]:
    digests: dict[int, tuple[int, Any, Any]] = {}
    for rank, lines in said.items():
        for line in _of(lines, "done"):
            if not line["right"]:
                yield f"rank {rank}: the sum of collective {line['index']} over {line['places']} is wrong"
            mine = (rank, line["digest"], line["places"])
            other = digests.setdefault(line["index"], mine)
            if other[1:] != mine[1:]:
                yield f"collective {line['index']}: rank {rank} has {mine[1:]}, rank {other[0]} {other[1:]}"


def _ends(episode: Episode, said: Mapping[int, Lines], struck: bool) -> Iterator[str]:
    lost = struck or episode.event is Event.leave
    for rank, lines in said.items():
        last = lines[-1] if lines and lines[-1]["kind"] == "end" else None
        if rank == episode.victim and struck:
            # A killed rank prints nothing more; a stopped one must not report that it finished.
            if last is not None and last["how"] == "finished":
                yield f"rank {rank} was killed or stopped, and finished all the same"
            continue
        if last is None:
            yield f"rank {rank} ended without an `end` line"
        elif last["how"] == "lost" and lost and episode.lane.on_loss == "fail":
            # A rank that leaves because the victim left may be named together with it.
            named = set(last["ranks"])
            if episode.victim not in named or (struck and named != {episode.victim}):
                yield f"rank {rank} names {last['ranks']} lost, not {episode.victim}: {last['text']}"
        elif last["how"] != "finished":
            yield f"rank {rank} ended by {last['how']}: {last.get('text')}"
        elif episode.lane.on_loss == "fail" and not lost:
            done = len(_of(lines, "done"))
            if done != episode.collectives:
                yield f"rank {rank} finished after {done} of {episode.collectives} collectives"


def _uneven(episode: Episode, said: Mapping[int, Lines], struck: bool) -> Iterator[str]:
    """Yields an error for each collective that some survivors completed and others did not."""
    survivors = [rank for rank in said if not (struck and rank == episode.victim)]
    done = {rank: {line["index"] for line in _of(said[rank], "done")} for rank in survivors}
    missed = {rank: {line["index"] for line in _of(said[rank], "lost")} for rank in survivors}
    for rank in survivors[1:]:
        if done[rank] != done[survivors[0]] or missed[rank] != missed[survivors[0]]:
            yield (
                f"ranks {survivors[0]} and {rank} differ in what was done: "
                f"{sorted(done[rank] ^ done[survivors[0]])}; lost: "
                f"{sorted(missed[survivors[0]])}, {sorted(missed[rank])}"
            )
    for rank in survivors:
        silent = set(range(episode.collectives)) - done[rank] - missed[rank]
        if silent:
            yield f"rank {rank} reports nothing of collectives {sorted(silent)}"
        if missed[rank] and not struck:
            yield f"rank {rank} lost {sorted(missed[rank])}, and no rank was killed or stopped"
