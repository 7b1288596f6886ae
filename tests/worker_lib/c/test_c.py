"""The C client: compiled here, it has the bits of `Session.allreduce`, and errors as codes with a message."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from tests.switchagg.cli.processes import outcome
from tests.worker_lib.harness import ROOT, in_threads, job_name, together
from worker_lib import Session, UsageError, c
from worker_lib.c import __main__ as flags

COMPILER = shutil.which("cc")


def _missing() -> str:
    if COMPILER is None:
        return "there is no C compiler"
    try:
        flags.libs()
    except FileNotFoundError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


def _flags() -> list[str]:
    line = [sys.executable, "-m", "worker_lib.c", "--cflags", "--libs"]
    return subprocess.run(line, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()


def _compile(source: Path, folder: Path) -> Path:
    assert COMPILER is not None
    program = folder / source.stem
    strict = ["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([COMPILER, *strict, "-o", program, source, *_flags()], check=True)
    return program


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of client.c."""
    return _compile(Path(__file__).with_name("client.c"), tmp_path_factory.mktemp("c"))


class _Rank:
    """A process of client.c; what it says, a line a step."""

    def __init__(self, client: Path, *steps: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [client, *steps],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": os.environ["PATH"], **environment},
        )  # fmt: skip

    def said(self, go: bool = False) -> list[str]:
        out, err = self.process.communicate("\n" if go else "", timeout=120)
        assert self.process.returncode == 0, (out, err)
        assert err == ""
        return out.splitlines()


CASES = [
    ("float32", "sum", {}), ("float32", "avg", {"bits": 16}), ("float32", "max", {}),
    ("float32", "sum", {"accuracy": "exact"}), ("float64", "sum", {}), ("float16", "sum", {}),
    ("int32", "sum", {"blocks": "sparse", "block_size": 7}), ("int64", "sum", {}), ("uint8", "or", {}),
]  # fmt: skip


def test_results_have_the_bits_of_a_session(host: EmbeddedController, client: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    inputs = []  # by case, then by rank
    for type_, _, _ in CASES:
        x = draw.normal(0, 1000, (3, 5003)).astype(type_)
        x[:, 100:3000] = 0
        inputs.append(x)
    rows = [draw.integers(0, 256, 37, np.uint8) for _ in range(3)]

    def run(session: Session) -> tuple[list[bytes], bytes, bytes]:
        found = []
        for (_, op, options), x in zip(CASES, inputs, strict=True):
            mine = x[session.rank].copy()
            session.allreduce(mine, op=op, **options)
            found.append(mine.tobytes())
        return (
            found,
            session.allgather(rows[session.rank]).tobytes(),
            session.broadcast(rows[session.rank].copy(), 2).tobytes(),
        )

    expected = together(host.url, 3, run)[0]
    name = job_name()
    ranks = []
    for rank in range(2):
        steps = [f"connect:job={name},rank={rank},world_size=3,timeout=60"]
        for number, ((type_, op, options), x) in enumerate(zip(CASES, inputs, strict=True)):
            (tmp_path / f"{rank}.{number}.in").write_bytes(x[rank].tobytes())
            given = ",".join(f"{key}={value}" for key, value in options.items())
            files = f"{tmp_path}/{rank}.{number}.in:{tmp_path}/{rank}.{number}.out"
            steps.append(f"reduce:{type_}:{x.itemsize}:{op}:{files}:{given}")
        (tmp_path / f"{rank}.in").write_bytes(rows[rank].tobytes())
        steps.append(f"gather:{tmp_path}/{rank}.in:{tmp_path}/{rank}.all")
        steps.append(f"broadcast:2:{tmp_path}/{rank}.in:{tmp_path}/{rank}.root")
        ranks.append(_Rank(client, *steps, SWITCHAGG_CONTROLLER=host.url))

    def third() -> Any:
        with worker_lib.connect(host.url, name, 2, 3, timeout=60) as session:
            return run(session)

    assert in_threads([third])[0].get() == expected, "the third rank is a session"
    for rank in range(2):
        assert ranks[rank].said() == ["0"] * (len(CASES) + 3) + [f"rank {rank} of 3"]
        for number, case in enumerate(CASES):
            assert (tmp_path / f"{rank}.{number}.out").read_bytes() == expected[0][number], case
        assert (tmp_path / f"{rank}.all").read_bytes() == expected[1]
        assert (tmp_path / f"{rank}.root").read_bytes() == expected[2]


def test_errors_are_codes_with_a_message(host: EmbeddedController, client: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(40))

    def reduce(rest: str) -> str:
        return f"reduce:{rest.replace('FILES', f'{tmp_path}/in:{tmp_path}/out')}"

    name = job_name()
    rank = _Rank(
        client,
        "barrier",
        "connect:world_size=2",
        "connect:colour=red",
        "connect:rank=one",
        f"connect:job={name},rank=0,world_size=2",
        "null",
        reduce("float31:4:sum:FILES"),
        reduce("float32:4:mul:FILES"),
        reduce("float32:4:sum:FILES:bits=7"),
        reduce("float32:4:sum:FILES:compressor=x"),
        reduce("float32:4:sum:FILES"),
        "barrier",
        reduce("float32:4:sum:FILES:timeout=0.3"),
        "barrier",
        "fork",
        "close",
        "barrier",
        SWITCHAGG_CONTROLLER=host.url,
    )
    with worker_lib.connect(host.url, name, 1, 2, timeout=60) as session:
        with pytest.raises(worker_lib.MismatchError):
            session.allreduce(np.ones(3, np.float32))
        session.barrier()
        lines = rank.said()
    expected = [
        "1 there is no session: call switchagg_connect first",
        "1 rank is not given, and RANK is not set",
        "1 setting 'colour=red': accepted, each once: controller=..., job=..., ",
        "1 setting 'rank=one': accepted: a number",
        "0",
        "1 data is NULL; accepted: the address of 3 elements",
        "1 type is 'float31' (",
        "1 op is 'mul': a switch adds and ORs",
        "1 bits is 7; accepted for float32: ",
        "1 setting 'compressor=x': accepted, each once: bits=..., ",
        "2 ranks called different things: they disagree on number of elements",
        "0",
        "5 allreduce(float32, shape (10,), sum, exact) was not done within 0.3 s on rank 0 of 2",
        "8 this session is broken (",
        "8 in a child",
        "0",
        "0",
        "1 session is NULL or closed; accepted: what switchagg_connect made",
        "rank -1 of -1",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), (line, start)


def test_a_program_that_ends_leaves_its_job_in_order(host: EmbeddedController, client: Path) -> None:
    name = job_name()
    rank = _Rank(client, f"connect:job={name},rank=0,world_size=2", "wait", SWITCHAGG_CONTROLLER=host.url)
    with worker_lib.connect(host.url, name, 1, 2, timeout=60) as session:
        assert rank.said(go=True) == ["0", "0", "rank 0 of 2"]
        with pytest.raises(worker_lib.WorkerLostError, match="left the job in order"):
            session.barrier()


def test_a_python_that_cannot_serve_is_named(client: Path, tmp_path: Path) -> None:
    connect = "connect:rank=0,world_size=1"
    assert _Rank(client, connect).said() == ["0", "rank 0 of 1"]
    said = _Rank(client, connect, SWITCHAGG_PYTHON=str(tmp_path / "python")).said()[0]
    assert said.startswith(f"1 SWITCHAGG_PYTHON is {tmp_path}/python; accepted: the path of a Python 3.")
    # A Python without switchagg, which is found with the next call.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    lines = _Rank(client, connect, connect, SWITCHAGG_PYTHON=bare, PYTHONPATH="").said()
    for line in lines[:2]:
        assert line.startswith("9 Python 3.")
        assert "cannot import worker_lib: ModuleNotFoundError" in line


def test_the_example(tmp_path: Path) -> None:
    program = _compile(ROOT / "examples" / "c" / "allreduce.c", tmp_path)
    status, said, errors = outcome("run", "-n", "3", "--no-prefix", "--", str(program))
    assert (status, sorted(said.splitlines())) == (0, [f"rank {rank} of 3: 2" for rank in range(3)]), errors
    header = Path(c.__file__).with_name("switchagg.h")
    if compiler := shutil.which("c++"):
        subprocess.run(
            [
                compiler,
                "-x",
                "c++",
                "-std=c++11",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-fsyntax-only",
                header,
            ],
            check=True,
        )


def test_it_uses_the_interpreter_that_is_there() -> None:
    library = ctypes.CDLL(str(flags.library()))
    session = ctypes.c_void_p()
    settings = (ctypes.c_char_p * 3)(b"rank=0", b"world_size=1", None)
    assert library.switchagg_connect(ctypes.byref(session), settings) == 0
    x = np.arange(5, dtype=np.float32)
    where = ctypes.c_void_p(x.ctypes.data)
    assert library.switchagg_allreduce(session, where, ctypes.c_size_t(5), b"float32", b"sum", None) == 0
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert library.switchagg_world_size(session) == 1
    assert library.switchagg_close(session) == 0


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flags.sysconfig, "get_config_vars", lambda: {"LIBDIR": str(tmp_path)})
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"has no libpython3\.\d+\.so: install its package"):
        flags.libpython()


@pytest.mark.parametrize("given", ["rank", "rank=", "rank=x", "check=2", "x=1"])
def test_settings_are_checked(given: str) -> None:
    with pytest.raises(UsageError, match=rf"^setting '{given}': accepted"):
        c.settings([given], ("rank", "check"))
    assert c.settings(["rank=3", "check=1", "bits=auto"], ("rank", "check", "bits")) == {
        "rank": 3,
        "check": True,
        "bits": "auto",
    }
