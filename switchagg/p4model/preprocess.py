"""`#include`, `#define`, `#if`: the C preprocessor (pcpp), with every line of output traced to the source.

    preprocess(path) ─► Preprocessed: lines without directives, each with its place in a source file

`#include <...>` looks into the folders that the caller names and then into ours, which has the declarations
of core.p4, v1model.p4 and tna.p4.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pcpp
import pcpp.evaluator

from switchagg.p4model.errors import Location, P4Error

_MACRO: Final = re.compile(r"[A-Za-z_]\w*(\([\w\s,.]*\))?", re.ASCII)

_OTHER_ARCHITECTURES: Final = {
    "psa.p4": "the Portable Switch Architecture",
    "pna.p4": "the Portable NIC Architecture",
    "t2na.p4": "Tofino 2",
    "ebpf_model.p4": "eBPF",
    "ubpf_model.p4": "uBPF",
    "xdp_model.p4": "XDP",
}
_MAX_INCLUDED: Final = 60  # files, each included by the one before
_MAX_EXPANDED: Final = 1 << 17  # tokens of macros, with those that other macros replace
_MAX_SHIFT: Final = 63  # bits, in #if
INCLUDE_FOLDER: Final = Path(__file__).parent / "include"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the output. `text[starts[i]:starts[i + 1]]` comes from `columns[i]` of the source line."""

    text: str
    file: str
    number: int
    starts: tuple[int, ...]
    columns: tuple[int, ...]

    def location(self, offset: int) -> Location:
        """The source location of the character at this offset; for text from a macro, that of its use."""
        piece = bisect_right(self.starts, offset) - 1
        return Location(self.file, self.number, self.columns[piece] + offset - self.starts[piece] + 1)


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """The text without directives, and the text of every file that was read, by name."""

    lines: list[Line]
    sources: Mapping[str, str]


def preprocess(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    defines: Sequence[str] = (),
) -> Preprocessed:
    """Reads a program and what it includes.

    Args:
        path: the program.
        include_dirs: where to look for included files before our own folder.
        defines: `NAME` or `NAME=value`, as for a compiler's `-D`.

    Raises:
        P4Error: a file is missing or not text, `#error`, a malformed directive, macros or included files
            without end.
    """
    path = os.fspath(path)
    worker = _Worker()
    try:
        source = worker.read(path, Location(path, 0, 0))
        for each in defines:
            name, _, value = each.partition("=")
            if not _MACRO.fullmatch(name):
                raise P4Error(f"-D takes NAME or NAME=value, not {each!r}", Location(_display(path), 0, 0))
            worker.define(f"{name} {value or '1'}")
        for folder in (*include_dirs, INCLUDE_FOLDER):
            worker.add_path(os.fspath(folder))
        worker.parse(source, path)
        lines = _lines(worker)
    except P4Error as error:
        raise error.with_sources(worker.texts) from None
    except RecursionError:
        raise P4Error("macros are nested too deeply", worker.here).with_sources(worker.texts) from None
    except (IndexError, AttributeError, ValueError, TypeError):
        # pcpp fails so on a directive without its argument, such as a bare `#ifdef`.
        raise P4Error("malformed directive", worker.here).with_sources(worker.texts) from None
    return Preprocessed(lines, worker.texts)


def _display(path: str) -> str:
    """A file's name for messages: relative where it is below the current folder."""
    return os.path.abspath(path).removeprefix(os.getcwd() + os.sep)


def _lines(worker: _Worker) -> list[Line]:
    tokens = itertools.groupby(iter(worker.token, None), lambda token: (token.source, token.lineno))
    return [_line(worker, place, [each.value for each in group]) for place, group in tokens]


def _line(worker: _Worker, place: tuple[str, int], values: list[str]) -> Line:
    file = _display(place[0])
    text = "".join(values).replace("\n", " ")
    source = worker.source_line(file, place[1])
    # Nearly every line is unchanged by pcpp and needs no search.
    if source.startswith(text.rstrip()):
        return Line(text, file, place[1], (0,), (0,))
    columns = _align(values, source)
    offsets = itertools.accumulate(map(len, values[:-1]), initial=0)
    return Line(text, file, place[1], tuple(offsets), tuple(columns))


def _align(values: list[str], source: str) -> list[int]:
    """The column of each token of a line with macros. Text from macros has the column of the first macro."""
    columns = [0] * len(values)
    first, cursor = 0, 0
    while first < len(values):
        cursor += len(source[cursor:]) - len(source[cursor:].lstrip())
        value = values[first].strip()
        if not source.startswith(value, cursor):
            break
        columns[first] = cursor
        cursor += len(value)
        first += 1
    last, end = len(values), len(source.rstrip())
    while last > first:
        value = values[last - 1].strip()
        end = len(source[:end].rstrip())
        if not source.endswith(value, cursor, end):
            break
        end -= len(value)
        columns[last - 1] = end
        last -= 1
    columns[first:last] = [min(cursor, max(len(source) - 1, 0))] * (last - first)
    return columns


def _shifted(value: Any, bits: Any) -> Any:
    """Returns `value << bits` of #if. pcpp's own takes any number of bits, and memory for as many."""
    if isinstance(bits, int) and (number := int.__int__(bits)) > _MAX_SHIFT:  # pcpp's own > gives no bool
        raise ValueError(f"a shift by {number} bits; accepted: up to {_MAX_SHIFT}")
    return _shift_left(value, bits)


_shift_left: Final = pcpp.evaluator.Value.__lshift__
pcpp.evaluator.Value.__lshift__ = _shifted


class _Worker(pcpp.Preprocessor):  # type: ignore[misc]
    """pcpp, raising errors where it would print them, and remembering what it reads."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._split: dict[str, list[str]] = {}
        self.here = Location("", 0, 0)
        self._included = self._expanded = 0
        super().__init__()
        self.rewrite_paths: list[tuple[str, str]] = []

    def read(self, path: str, location: Location) -> str:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise P4Error(f"{path} is not a text in UTF-8: {error}", location) from None
        except OSError as error:
            raise P4Error(f"cannot read {path}: {error.strerror}", location) from None
        self.texts[_display(path)] = text
        return text

    def source_line(self, file: str, number: int) -> str:
        if file not in self._split:
            self._split[file] = self.texts.get(file, "").splitlines()
        lines = self._split[file]
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def include(self, tokens: Any, original_line: Any) -> Iterator[Any]:
        self._included += 1
        if self._included > _MAX_INCLUDED:
            raise P4Error("files include each other without end", self.here)
        yield from super().include(tokens, original_line)
        self._included -= 1

    def expand_macros(self, tokens: Any, expanding_from: Sequence[str] = ()) -> Any:
        self._expanded += len(tokens) if expanding_from else 0
        if self._expanded > _MAX_EXPANDED:
            raise P4Error(f"macros make more than {_MAX_EXPANDED} tokens", self._place(tokens))
        try:
            return super().expand_macros(tokens, list(expanding_from))
        except RecursionError:
            if expanding_from:
                raise
            raise P4Error("macros are nested too deeply", self._place(tokens)) from None

    def _place(self, tokens: Any) -> Location:
        return Location(_display(tokens[0].source), tokens[0].lineno, 1) if tokens else self.here

    def on_error(self, file: str, line: int, msg: str) -> None:
        raise P4Error(msg, Location(_display(file), line, 1))

    def on_file_open(self, is_system_include: bool, includepath: str) -> Any:  # noqa: ARG002
        if not os.path.isfile(includepath):
            raise FileNotFoundError(includepath)
        return io.StringIO(self.read(includepath, self.here))

    def on_include_not_found(
        self, is_malformed: bool, is_system_include: bool, curdir: str, includepath: str
    ) -> None:
        if is_malformed:
            raise P4Error(f'{includepath} is no file name: write <file> or "file"', self.here)
        name = f"<{includepath}>" if is_system_include else f'"{includepath}"'
        own = [] if is_system_include or not curdir else [curdir]
        folders = map(_display, [*own, *self.path])
        if architecture := _OTHER_ARCHITECTURES.get(Path(includepath).name):
            raise P4Error(f"{name}: {architecture} is not supported; v1model.p4 and tna.p4 are", self.here)
        raise P4Error(f"cannot find {name}; looked into {', '.join(folders)}", self.here)

    def on_directive_handle(self, directive: Any, toks: Any, ifpassthru: bool, precedingtoks: Any) -> Any:
        self.here = Location(_display(directive.source), directive.lineno, 1)
        return super().on_directive_handle(directive, toks, ifpassthru, precedingtoks)

    def on_directive_unknown(self, directive: Any, toks: Any, *_: Any) -> Any:
        if directive.value == "error":
            text = "".join(each.value for each in toks).strip()
            raise P4Error(f"#error {text}", Location(_display(directive.source), directive.lineno, 1))
        if directive.value not in ("warning", "pragma", "line"):
            raise P4Error(f"unknown directive #{directive.value}", self.here)
        return True
