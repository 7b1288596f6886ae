"""`switchagg run` with real processes: what they find, how they end, that nothing outlives the command."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from switchagg.cli.main import main
from switchagg.launch.cores import shares
from tests.cores import needs_two_cores
from tests.switchagg.cli.processes import Command, command, outcome
from tests.waiting import eventually

SLEEP = "import os, time; print('here', flush=True); time.sleep(600)"
# Not one long sleep: a signal that comes between Python's last look and the system call is handled after it.
WAIT = "while True: time.sleep(0.1)"


def python(program: str) -> list[str]:
    return ["--", sys.executable, "-c", program]


def lines(text: str) -> dict[int, list[str]]:
    """Lines by the rank in front of them."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        prefix, _, rest = line.partition("] ")
        found.setdefault(int(prefix.removeprefix("[")), []).append(rest)
    return found


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def wait_for_output(running: Command, count: int) -> list[str]:
    assert running.process.stdout is not None
    return [running.process.stdout.readline() for _ in range(count)]


def test_what_the_processes_find() -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    status, out, err = outcome(
        "run", "-n", "3", "--job", "mine", "--timeout", "7.5", *python(program),
        environment={"RANK": "9", "WORLD_SIZE": "9", "OTHER": "stays", "OMP_NUM_THREADS": "3"},
    )  # fmt: skip
    assert (status, err) == (0, "")
    found = {rank: json.loads(text) for rank, (text,) in lines(out).items()}
    assert sorted(found) == [0, 1, 2]
    for rank, environment in found.items():
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "3"
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert 0 < int(environment["MASTER_PORT"]) < 65536
        assert environment["SWITCHAGG_CONTROLLER"].startswith("http://127.0.0.1:")
        assert (environment["SWITCHAGG_JOB"], environment["SWITCHAGG_TIMEOUT"]) == ("mine", "7.5")
        assert (environment["OTHER"], environment["OMP_NUM_THREADS"]) == ("stays", "3")
    for name in ("MASTER_PORT", "SWITCHAGG_CONTROLLER"):
        assert len({environment[name] for environment in found.values()}) == 1


def cores_of_ranks(*given: str, **environment: str) -> list[set[int]]:
    """Runs ranks, and returns the cores that each may use."""
    program = "import os; print(*sorted(os.sched_getaffinity(0)))"
    status, out, err = outcome("run", *given, *python(program), environment=environment)
    assert (status, err) == (0, "")
    return [set(map(int, text.split())) for _, (text,) in sorted(lines(out).items())]


HOSTS = ("-H", "localhost:1,127.0.0.1:2")


@needs_two_cores
@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (("-n", "4"), [4]),
        (("-n", "3", "--bind-to", "none"), []),
        (("-n", "3", "--loss", "0.01"), []),
        (("-n", "3", "--loss", "0.01", "--bind-to", "cores"), [3]),
        (("-n", "3", "--seal"), []),
        (HOSTS, []),
        ((*HOSTS, "--bind-to", "cores"), [1, 2]),
    ],
)
def test_each_has_its_share_of_the_cores(given: tuple[str, ...], bound: list[int]) -> None:
    """`bound`: ranks of each host that are bound."""
    mine = set(sorted(os.sched_getaffinity(0))[:2])
    with on_cores(mine):
        found = cores_of_ranks(*given, SWITCHAGG_TRANSPORT="")
    if not bound:
        assert found == [mine] * 3
    for count in bound:
        ranks, found = found[:count], found[count:]
        assert ranks == shares(mine, count)
        assert len(set(map(frozenset, ranks))) == min(count, 2)


@needs_two_cores
@pytest.mark.parametrize(
    ("variable", "value", "bound"),
    [
        ("TRANSPORT", "udp", False),
        ("TRANSPORT", "slots", True),
        ("CHECK", "1", False),
        ("CHECK", "0", True),
        ("SEAL", "/dev/null", False),
    ],
)
def test_none_is_bound_where_the_environment_asks_for_packets(variable: str, value: str, bound: bool) -> None:
    found = cores_of_ranks("-n", "2", **{f"SWITCHAGG_{variable}": value})
    own = os.sched_getaffinity(0)
    assert found == (shares(own, 2) if bound else [own, own])


def test_they_can_join_and_the_options_reach_the_switch(tmp_path: Path) -> None:
    program = """
import os
from worker_lib.join import join
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
url, job = os.environ["SWITCHAGG_CONTROLLER"], os.environ["SWITCHAGG_JOB"]
member = join(url, job, rank, size, "127.0.0.1", 44000 + rank)
print(member.rank, member.slots, member.words)
member.leave()
"""
    pcap = tmp_path / "run.pcap"
    status, out, err = outcome(
        "run", "-n", "2", "--slots", "32", "--words", "99", "--loss", "0.5", "--seed", "3",
        "--pcap", str(pcap), *python(program),
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert lines(out) == {0: ["0 32 99"], 1: ["1 32 99"]}
    assert pcap.stat().st_size >= 24


def test_output_keeps_its_stream_and_gets_its_rank() -> None:
    program = r"""
import sys
sys.stdout.write("a\nb\rc\r\n\n" + "é" * 70000 + "end")
sys.stderr.write("wrong\nno end")
"""
    status, out, err = outcome("run", "-n", "1", *python(program))
    assert status == 0
    # Text mode reads the carriage return as a newline. The long line is broken between characters.
    half = 1 << 15
    long = ["é" * half, "é" * half, "é" * (70000 - 2 * half) + "end"]
    assert lines(out) == {0: ["a", "b", "c", "", *long]}
    assert err == "[0] wrong\n[0] no end\n"


def test_without_prefix() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); print(repr(sys.stdin.read()))"
    assert outcome("run", "-n", "1", "--no-prefix", *python(program)) == (0, "out\n''\n", "err\n")


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("sys.exit(3)", 3, "ended with status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        pytest.param("os.abort()", 134, "was killed by SIGABRT", marks=pytest.mark.long),
        pytest.param("raise ValueError('bad')", 1, "ended with status 1", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_fails_ends_the_others(ending: str, status: int, said: str) -> None:
    program = f"""
import os, signal, sys, time
if os.environ["RANK"] == "1":
    {ending}
time.sleep(600)
"""
    got, _, err = outcome("run", "-n", "3", "--grace", "0.2", *python(program))
    assert got == status
    assert "switchagg run: rank 1 (pid " in err
    assert f") {said}; the others have 0.2 seconds to end" in err
    assert err.count("switchagg run:") == 1


def test_the_others_have_their_grace(tmp_path: Path) -> None:
    """They end by themselves with another status, which does not count, and after SIGTERM in order."""
    program = f"""
import os, pathlib, signal, sys, time
def term(*_):
    print("told", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, term)
print("here", flush=True)
folder, rank = pathlib.Path({str(tmp_path)!r}), os.environ["RANK"]
(folder / (rank + ".new")).write_text(str(os.getpid()))
(folder / (rank + ".new")).rename(folder / rank)
while not all((folder / each).exists() for each in "012"): time.sleep(0.01)
if rank == "0":
    sys.exit(9)
if rank == "1":
    # Until the launcher has seen the first one's end, and reaped it.
    while os.path.exists("/proc/" + (folder / "0").read_text()): time.sleep(0.01)
    sys.exit(4)
{WAIT}
"""
    status, out, err = outcome("run", "-n", "3", "--grace", "3", *python(program))
    assert status == 9
    assert lines(out) == {0: ["here"], 1: ["here"], 2: ["here", "told"]}
    assert "rank 0" in err
    assert "rank 1" not in err


def test_a_rank_that_ignores_sigterm_is_killed() -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
if os.environ["RANK"] == "0":
    time.sleep(0.3); sys.exit(2)
time.sleep(600)
"""
    assert outcome("run", "-n", "2", "--grace", "0", *python(program))[0] == 2


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_signals_are_passed_on(number: signal.Signals) -> None:
    program = f"""
import signal, sys, time
def handler(got, _):
    print("got", got, flush=True)
    sys.exit(0)
signal.signal({int(number)}, handler)
print("here", flush=True)
{WAIT}
"""
    with command(["run", "-n", "2", *python(program)]) as running:
        wait_for_output(running, 2)
        running.process.send_signal(number)
        status, out, err = running.finish()
    assert (status, err) == (128 + number, "")
    assert lines(out) == {0: [f"got {int(number)}"], 1: [f"got {int(number)}"]}


def test_ctrl_c_at_a_terminal_reaches_each_rank_once() -> None:
    """A terminal signals the whole foreground process group."""
    program = f"""
import time
try:
    print("here", flush=True)
    {WAIT}
except KeyboardInterrupt:
    print("once", flush=True)
    time.sleep(0.3)
"""
    with command(["run", "-n", "2", *python(program)], None) as running:
        wait_for_output(running, 2)
        # The command is in this process's group; what it has started must not be: a terminal would signal it.
        groups = {process.pid: os.getpgid(process.pid) for process in running.family()}
        assert [pid for pid, group in groups.items() if group == os.getpgrp()] == [running.process.pid]
        running.process.send_signal(signal.SIGINT)
        status, out, _ = running.finish()
    assert status == 130
    assert lines(out) == {0: ["once"], 1: ["once"]}


def test_a_second_signal_kills() -> None:
    program = f"""
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
print("here", flush=True)
{WAIT}
"""
    with command(["run", "-n", "2", "--grace", "600", *python(program)]) as running:
        wait_for_output(running, 2)
        running.process.send_signal(signal.SIGINT)
        wait_for_output(running, 2)
        running.process.send_signal(signal.SIGINT)
        assert running.finish()[0] == 130


def _kill_run(running: Command) -> None:
    running.process.kill()


def _kill_a_worker(running: Command) -> None:
    next(process for process in running.family() if process.environ().get("RANK") == "1").kill()


@pytest.mark.parametrize("kill", [_kill_run, _kill_a_worker])
@pytest.mark.parametrize("program", [pytest.param("plain", marks=pytest.mark.long), "grandchildren"])
def test_kill_leaves_nothing_behind(kill: Callable[[Command], None], program: str) -> None:
    line = python(SLEEP)
    if program == "grandchildren":
        line = ["--", "sh", "-c", "sleep 601 & sleep 602 & echo here; wait"]
    with command(["run", "-n", "2", "--grace", "0.1", *line]) as running:
        wait_for_output(running, 2)
        # The command, its guardian, the host, ranks and theirs. A process about to execute shows no mark.
        eventually(lambda: len(running.family()) >= (5 if program == "plain" else 9))
        kill(running)
        status = running.process.wait(240)
        assert status == (-9 if kill is _kill_run else 137)


def test_what_a_rank_leaves_running_ends_with_it() -> None:
    status, out, err = outcome("run", "-n", "2", "--", "sh", "-c", "sleep 600 & echo done")
    assert (status, err) == (0, "")
    assert lines(out) == {0: ["done"], 1: ["done"]}


def test_a_switch_that_dies_is_named_and_the_ranks_go_on(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = f"""
import os, time
print("here", flush=True)
while not os.path.exists({str(told)!r}): time.sleep(0.01)
print("done")
"""
    with command(["run", "-n", "1", *python(program)]) as running:
        wait_for_output(running, 1)
        (host,) = [process for process in running.family() if "host" in process.cmdline()]
        host.kill()
        assert running.process.stderr is not None
        said = running.process.stderr.readline()
        told.touch()
        status, out, err = running.finish()
    assert (status, out, err) == (0, "[0] done\n", "")
    assert said == f"switchagg run: the switch (pid {host.pid}) was killed by SIGKILL\n"


def test_another_controller() -> None:
    program = "import os; print(os.environ['SWITCHAGG_CONTROLLER'])"
    url = "http://127.0.0.1:1"
    assert outcome("run", "-n", "1", "--controller", url, *python(program)) == (0, f"[0] {url}\n", "")
    status, _, err = outcome("run", "-n", "1", "--controller", url, "--loss", "0.1", *python(program))
    assert (status, "--loss is for a switch that this command starts" in err) == (2, True)


def test_commands_that_cannot_be_run(tmp_path: Path) -> None:
    status, out, err = outcome("run", "-n", "2", "--", "no-such-command", "-x")
    assert (status, out, err) == (127, "", "switchagg run: no-such-command: command not found\n")
    plain = tmp_path / "plain"
    plain.write_text("echo\n")
    assert outcome("run", "-n", "2", "--", str(plain))[0] == 126
    plain.chmod(0o755)
    status, _, err = outcome("run", "-n", "2", "--", str(plain))
    assert (status, "cannot execute" in err) == (126, True)
    assert outcome("run", "-n", "2", "--", str(tmp_path / "nothing"))[0] == 127


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0"], "-n is 0; accepted: 1..32 processes"),
        (["-n", "33"], "-n is 33"),
        (["-n", "2", "--grace", "-1"], "grace is -1.0"),
        (["-n", "2", "--timeout", "0"], "timeout is 0"),
        (["-n", "2", "--job", ""], "job is empty"),
    ],
)
def test_options_that_cannot_work(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, "--", "true"]) == 2
    assert said in capsys.readouterr().err


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["run", "-n", "2"], ["run", "-n", "2", "--"]):
        assert main(line) == 2
        assert "no command: switchagg run -n 4 -- python train.py" in capsys.readouterr().err


def test_faults_that_there_are_not() -> None:
    status, out, err = outcome("run", "-n", "2", "--loss", "3", "--", "echo", "never")
    assert (status, out) == (2, "")
    assert "loss is 3.0; accepted: a probability" in err


def test_a_switch_that_cannot_start() -> None:
    status, out, err = outcome("run", "-n", "2", "--pcap", "/no/such/folder/x.pcap", "--", "echo", "never")
    assert (status, out) == (1, "")
    assert "pcap is /no/such/folder/x.pcap: No such file or directory" in err


def test_no_double_dash_is_needed() -> None:
    assert outcome("run", "-n", "1", "echo", "-n", "--loss", "x")[:2] == (0, "[0] --loss x\n")


def test_it_uses_no_cpu_while_it_waits() -> None:
    with command(["run", "-n", "2", *python(SLEEP)]) as running:
        wait_for_output(running, 2)
        own = [process for process in running.family() if "RANK" not in process.environ()]
        assert len(own) == 3  # the command, its guardian, the host
        before = {process.pid: process.num_ctx_switches().voluntary for process in own}
        time.sleep(1)
        for process in own:
            # A process that polls, however slowly, is woken again and again.
            assert process.num_ctx_switches().voluntary - before[process.pid] < 10, process
        running.process.terminate()
        eventually(lambda: running.process.poll() is not None)


SEALED = """
import os, sys, time
import numpy as np, worker_lib
pipe = os.readlink("/proc/self/fd/" + os.environ["SWITCHAGG_SEAL"].removeprefix("fd:"))
assert pipe.startswith("pipe:")
session = worker_lib.connect()
assert session._state.sealed
total = session.allreduce(np.ones(1000, np.float32))
frames = [repr(frame) for frame in (session.stats(), session._state.__dict__, os.environ, session)]
print(float(total[0]), os.environ["SWITCHAGG_SEAL"], "".join(frames).encode().hex(), flush=True)
names = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
print(pipe in [os.readlink(name) for name in names if os.path.lexists(name)], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("through", [pytest.param("a file", marks=pytest.mark.long), "a descriptor"])
def test_a_secret_is_on_no_command_line_in_no_environment_and_in_no_output(
    tmp_path: Path, through: str
) -> None:
    secret = os.urandom(24)
    file = tmp_path / "secret"
    file.write_bytes(secret)
    file.chmod(0o600)
    descriptor = os.open(file, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    named = str(file) if through == "a file" else f"fd:{descriptor}"
    forms = [secret, secret.hex().encode(), repr(secret)[2:-1].encode(), base64.b64encode(secret)]

    def hides(what: bytes) -> bool:
        return not any(form in what for form in forms)

    arguments = ["run", "-n", "2", "--seal", *python(SEALED)]
    with command(arguments, {"SWITCHAGG_SEAL": named}, [descriptor]) as running:
        told = lines("".join(wait_for_output(running, 4)))
        for first, second in told.values():
            total, seal, shown = first.split(" ")
            assert (total, second) == ("2.0", "False")
            assert seal.startswith("fd:")
            assert hides(bytes.fromhex(shown))
        family = running.family()
        assert len(family) >= 4  # this command, the switch, two ranks
        for process in family:
            for name in ("cmdline", "environ"):
                assert hides(Path(f"/proc/{process.pid}/{name}").read_bytes()), (process, name)
        running.process.send_signal(signal.SIGTERM)
        _, out, err = running.finish()
    os.close(descriptor)
    assert hides((out + err).encode())


def test_ranks_seal_with_a_fresh_secret_where_none_is_named() -> None:
    program = (
        "import numpy as np, resource, worker_lib\n"
        "with worker_lib.connect() as session:\n"
        "    total = session.allreduce(np.ones(1000, np.float32))\n"
        "    print(session._state.sealed, float(total[0]), resource.getrlimit(resource.RLIMIT_CORE)[0])"
    )
    status, out, err = outcome(
        "run", "-n", "3", "--seal", *python(program), environment={"SWITCHAGG_SEAL": ""}
    )
    assert (status, err) == (0, "")
    core = min(1, resource.getrlimit(resource.RLIMIT_CORE)[1] % (1 << 64))
    assert lines(out) == {rank: [f"True 3.0 {core}"] for rank in range(3)}


def test_a_secret_that_cannot_be_read_starts_nothing(tmp_path: Path) -> None:
    named = str(tmp_path / "none")
    status, out, err = outcome(
        "run", "-n", "2", "--seal", *python("print('started')"), environment={"SWITCHAGG_SEAL": named}
    )
    assert (status, out) == (2, "")
    assert f"the secret of sealed sums, {named!r}, cannot be read" in err
