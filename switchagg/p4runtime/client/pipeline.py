"""The program of a P4Runtime switch: the one that its spec names, against the one that it runs.

    spec: program | p4info and config ---> Pipeline --+
                                                      +--> push, or leave alone
    what the switch says that it runs ----------------+
                                      `--> Program: target, K, slots

A program is left alone, with everything in its tables, where the switch has the cookie that we would give it,
or no cookie and the same P4Info: it was started with it. The cookie is drawn from P4Info and config.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from switchagg.errors import SwitchError, UsageError
from switchagg.p4program import program as p4_program
from switchagg.p4program.program import ADMISSION, DIRECTION, MAX_JOBS, SwitchAddress, Target
from switchagg.p4runtime.client.spec import P4RuntimeSpec, default_mac
from switchagg.p4runtime.p4info_diff import difference
from switchagg.p4runtime.protos import p4info_pb2
from switchagg.rules.switch import DEFAULT_MEMORY, Capacity
from switchagg.wire.header import MAX_WORDS, MAX_WORKERS

_NATIVE: Final = re.compile(r'@switchagg_native\((".*?"(?:\s*,\s*".*?")*)\)')
_ADMISSION_ENTRIES: Final = 9  # that no job has


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A program as `SetForwardingPipelineConfig` takes it."""

    p4info: Any
    config: bytes

    @property
    def cookie(self) -> int:
        """64 bits that tell it from others; not 0."""
        digest = hashlib.sha256(self.p4info.SerializeToString(deterministic=True))
        digest.update(self.config)
        return int.from_bytes(digest.digest()[:8], "big") or 1


@dataclass(frozen=True, slots=True)
class Program:
    """The program that a switch runs.

    Attributes:
        target: ``native``, ``p4``, ``bmv2`` or ``tofino``.
        ports: what our programs call the controller's ports, K and slots there.
        exact_words: its K; None where a job chooses, up to `max_words`.
        own: the switch's addresses, where it says them itself.
        receive_buffer, link, threads: as `SwitchDriver` has them.
        memory: bytes for slots; None where they all have room with words of `max_words`.
        ethernet: whether it has ports, behind which workers are; not so the native engine on a UDP port.
        directs: as `Capacity` has it.
    """

    target: str
    ports: Target
    max_words: int
    exact_words: int | None
    own: SwitchAddress | None = None
    receive_buffer: int = 1 << 18
    link: str = ""
    memory: int | None = None
    ethernet: bool = True
    directs: bool = False
    threads: int = 1

    @property
    def native(self) -> bool:
        """True if the native engine runs it, whose jobs choose their K."""
        return self.target == "native"

    @property
    def capacity(self) -> Capacity:
        """Its slots, words and memory."""
        memory = self.memory or Capacity.bytes_of(self.ports.slots, self.max_words)
        slots, words, exact = self.ports.slots, self.max_words, self.exact_words
        return Capacity(slots, words, memory, MAX_WORKERS, MAX_JOBS, exact, self.directs)


def wanted_pipeline(spec: P4RuntimeSpec) -> Pipeline | None:
    """Returns the program that the spec names; None where it takes what runs.

    Raises `UsageError` for files that are missing or hold something else.
    """
    if spec.program is not None:
        from switchagg.p4runtime.program_source import source_of

        defines = list(spec.defines)
        if not any(each.split("=")[0] == "AGG_P4RUNTIME" for each in defines):
            defines.append("AGG_P4RUNTIME=1")
        source = source_of(spec.program, (), defines)
        return Pipeline(source.p4info, source.config)
    if spec.p4info is None or spec.config is None:
        return None
    return Pipeline(read_p4info(spec.p4info), _read(spec.config))


def read_p4info(path: Path) -> Any:
    """Reads a P4Info file, text or binary. Raises `UsageError`."""
    data = _read(path)
    p4info = p4info_pb2.P4Info()
    try:
        text_format.Parse(data.decode(), p4info, allow_unknown_field=True)
    except (UnicodeDecodeError, text_format.ParseError) as problem:
        try:
            p4info.ParseFromString(data)
        except DecodeError:
            p4info.Clear()
        if not p4info.tables:
            raise UsageError(
                f"{path} is no P4Info ({problem}); accepted: what p4c writes with --p4runtime-files; for a "
                "Tofino, with --p4runtime-force-std-externs (make tofino P4RUNTIME=1)"
            ) from None
    return p4info


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def must_push(running: Any, wanted: Pipeline | None) -> bool:
    """Returns True if the wanted program has to be started, which empties all tables.

    Args:
        running: the switch's `ForwardingPipelineConfig`; None where there is none.

    Raises `SwitchError` where nothing runs and nothing is wanted.
    """
    if wanted is None:
        if running is None:
            raise SwitchError("it runs no program; give program=FILE.p4, or p4info=FILE and config=FILE")
        return False
    if running is None:
        return True
    cookie = running.cookie.cookie
    return bool(cookie != wanted.cookie if cookie else difference(running.p4info, wanted.p4info) is not None)


def describe(spec: P4RuntimeSpec, p4info: Any) -> Program:
    """Says what the program of a P4Info is.

    Raises `SwitchError` where it is none of ours, or not what the spec says.
    """
    names = [each.preamble.name for each in p4info.tables]
    if not any(name == ADMISSION or name.endswith("." + ADMISSION) for name in names):
        raise SwitchError(
            f"it runs a program without the table {ADMISSION}; accepted: switchagg_v1model.p4 and "
            "switchagg_tna.p4; name one by program=, or by p4info= and config="
        )
    directs = any(name == DIRECTION or name.endswith("." + DIRECTION) for name in names)
    for note in p4info.pkg_info.annotations:
        if found := _NATIVE.fullmatch(note.strip()):
            if spec.target not in ("auto", "native"):
                raise SwitchError(f"it is a native switch, where its spec says target {spec.target}")
            return replace(_native(spec, re.findall(r'"(.*?)"', found[1])), directs=directs)
    sizes = {each.preamble.name.rpartition(".")[2]: int(each.size) for each in p4info.registers}
    words = sum(name.startswith("word_") for name in sizes) + 2 * sum(
        name.startswith("pair_") for name in sizes
    )
    tna = p4info.pkg_info.arch == "tna" or any(name.startswith("pair_") for name in sizes)
    default = _default(spec, tna=tna)
    slots = sizes.get("seq", 0)
    if spec.words is not None and words and spec.words != words:
        raise SwitchError(f"its program has words {words}, where the switch's spec says {spec.words}")
    if spec.slots is not None and slots and spec.slots > slots:
        raise SwitchError(f"its program has slots {slots}, where the switch's spec says {spec.slots}")
    if spec.target not in ("auto", "p4", "tofino" if tna else "bmv2"):
        kind = "a TNA program" if tna else "a v1model program"
        raise SwitchError(f"it runs {kind}, where the switch's spec says target {spec.target}")
    made = _of(default, spec.words or words or 64, spec.slots or slots or 16384)
    return replace(made, directs=directs)


def expected(spec: P4RuntimeSpec, wanted: Pipeline | None) -> Program:
    """Returns the program that a switch is assumed to run until it can be asked, by its spec.

    Raises `UsageError` where the program is none that the spec can mean.
    """
    if wanted is not None:
        try:
            return describe(spec, wanted.p4info)
        except SwitchError as error:
            raise UsageError(f"switch {spec.name}: of the program that its spec names: {error}") from None
    if spec.target == "native":
        return _native(spec, [])
    return _of(_default(spec, tna=spec.target == "tofino"), spec.words or 64, spec.slots or 16384)


def _of(default: Program, words: int, slots: int) -> Program:
    return Program(default.target, replace(default.ports, words=words, slots=slots), words, words)


def _default(spec: P4RuntimeSpec, *, tna: bool) -> Program:
    if tna:
        pipe = min((station.port >> 7 for station in spec.stations.values()), default=0)
        made = p4_program.tna(controller_port=_or(spec.controller_port, p4_program.TNA_CPU_PORT), pipe=pipe)
        target = "p4" if spec.target == "p4" or spec.program is not None else "tofino"
    else:
        made = p4_program.v1model(controller_port=_or(spec.controller_port, p4_program.V1MODEL_CPU_PORT))
        if spec.target != "auto":
            target = spec.target
        else:
            target = "bmv2" if spec.config is not None else "p4"
    return Program(target, made, made.words, made.words)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _native(spec: P4RuntimeSpec, notes: Iterable[str]) -> Program:
    said = dict(note.partition("=")[::2] for note in notes)
    try:
        most = int(said["words"].rpartition("..")[2]) if "words" in said else MAX_WORDS
        slots = int(said.get("slots", spec.slots or 65536))
        own = None
        if "address" in said:
            ip, _, port = said["address"].rpartition(":")
            own = SwitchAddress(default_mac(ip), ip, int(port))
        queue = int(said.get("receive_buffer", 1 << 18))
        memory = int(said.get("memory", DEFAULT_MEMORY))
        threads = int(said.get("threads", 1))
    except ValueError:
        raise SwitchError(f"it describes itself by {said}, which cannot be read") from None
    ports = p4_program.v1model(
        slots=min(slots, spec.slots or slots),
        controller_port=_or(spec.controller_port, p4_program.V1MODEL_CPU_PORT),
    )
    words = min(most, spec.words or most)
    link = said.get("link", "")
    return Program("native", ports, words, None, own, queue, link, memory, "ports" in said, threads=threads)
