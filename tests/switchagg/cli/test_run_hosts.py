"""`switchagg run -H`: ranks on several hosts, through an ssh of the tests and a real sshd on loopback."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from switchagg.cli.main import main
from switchagg.errors import UsageError
from switchagg.launch.hosts import (
    Answer,
    Host,
    filled,
    meeting_point,
    own_address,
    parse_hosts,
    passed_on,
    read_hostfile,
)
from tests.switchagg.cli.processes import command, outcome
from tests.switchagg.cli.test_run import WAIT, lines, python, wait_for_output
from tests.waiting import eventually

# Like a login: an environment of its own, another folder, the command through a shell. "down" cannot be
# reached, "old" has another release, "deaf" never answers.
_SSH = r"""#!/bin/sh
echo "$*" >> "$FAKE_SSH_LOG"
test "$1 $2" = "-o BatchMode=yes" || exit 99
case $3 in
  down) echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255;;
  old) printf '\036switchagg {"version": "0.0.1", "port": 1, "connection": ""}\n'; exec sleep 600;;
  deaf) exec sleep 600;;
esac
cd / && exec env -i HOME=/root PATH=/usr/bin:/bin NODE=$3 SWITCHAGG_TEST_MARK=$SWITCHAGG_TEST_MARK \
  SSH_CONNECTION="127.0.0.1 50000 127.0.0.$(test $3 = node1 && echo 1 || echo 2) 22" sh -c "$4"
"""


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh on PATH that starts the command here. Returns its log of command lines."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(_SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[list[str]]:
    """A real sshd on loopback, reached as node1 and node2. Yields the options of `run` for it."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd, or no ssh: apt-get install openssh-server openssh-client")
    with ExitStack() as stack:
        if os.getuid() == 0 and not Path("/run/sshd").exists():  # which its service makes
            Path("/run/sshd").mkdir(mode=0o755)
            stack.callback(Path("/run/sshd").rmdir)
        for name in ("host", "user"):
            line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
            subprocess.run(line, check=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (tmp_path / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\n"
            f"AuthorizedKeysFile {tmp_path}/user.pub\n"
            "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\n"
        )
        (tmp_path / "ssh_config").write_text(
            f"Host node1 node2\nHostName 127.0.0.1\nPort {port}\nUser {getpass.getuser()}\n"
            f"IdentityFile {tmp_path}/user\nIdentitiesOnly yes\nUserKnownHostsFile /dev/null\n"
            "StrictHostKeyChecking no\nLogLevel ERROR\nBatchMode yes\n"
        )
        server = subprocess.Popen(
            [program, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=(tmp_path / "said").open("w")
        )
        stack.callback(server.wait)
        stack.callback(server.terminate)

        def answers() -> bool:
            assert server.poll() is None, (tmp_path / "said").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        eventually(answers)
        yield ["--ssh", f"ssh -F {tmp_path}/ssh_config"]


_JOIN = """
import json, os, sys
import numpy as np, worker_lib
with worker_lib.connect() as session:
    total = session.allreduce(np.full(1000, session.rank + 1.0, np.float32))
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR SWITCHAGG_JOB MINE OMP_NUM_THREADS NODE"
    told = {name: os.environ.get(name) for name in names.split()}
    print(json.dumps({**told, "total": float(total[0]), "sealed": session._state.sealed,
                      "folder": os.getcwd(), "token": bool(os.environ["SWITCHAGG_TOKEN"])}))
    print("to stderr", file=sys.stderr)
"""


def _joined(out: str) -> list[dict[str, object]]:
    return [json.loads(said) for _, (said,) in sorted(lines(out).items())]


def test_ranks_of_two_hosts_join(fake_ssh: Path) -> None:
    del fake_ssh
    status, out, err = outcome(
        "run", "-H", "node1:2,node2", "--job", "j", "--timeout", "100", "--seal", *python(_JOIN),
        environment={"MINE": "ü 'x'", "OMP_NUM_THREADS": "3", "SWITCHAGG_SEAL": ""},
    )  # fmt: skip
    assert status == 0, err
    assert sorted(err.splitlines()) == [f"[{rank}] to stderr" for rank in range(3)]
    same = {
        "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "SWITCHAGG_JOB": "j", "MINE": "ü 'x'",
        "OMP_NUM_THREADS": "3", "total": 6.0, "sealed": True, "folder": os.getcwd(), "token": True,
    }  # fmt: skip
    assert _joined(out) == [
        {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "NODE": "node1", **same},
        {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE": "node1", **same},
        {"RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE": "node2", **same},
    ]


def test_through_a_real_sshd(sshd: list[str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# two\nnode1 slots=2\n\nnode2:4  # more than are needed\n")
    line = ["run", "-n", "4", "--hostfile", str(tmp_path / "hosts"), "--timeout", "100", *sshd]
    status, out, err = outcome(*line, *python(_JOIN), environment={"MINE": "m"})
    assert status == 0, err
    told = _joined(out)
    assert [each["LOCAL_RANK"] for each in told] == ["0", "1", "0", "1"]
    assert {each["MASTER_ADDR"] for each in told} == {"127.0.0.1"}
    assert {(each["total"], each["MINE"], each["folder"]) for each in told} == {(10.0, "m", os.getcwd())}
    program = "import os, sys, time; time.sleep(600 if os.environ['RANK'] != '1' else 0); sys.exit(5)"
    assert outcome("run", "-H", "node1,node2", "--grace", "0.1", *sshd, *python(program))[0] == 5


def test_this_computer_needs_no_ssh(fake_ssh: Path) -> None:
    # In one write: ranks are unbuffered, share their output, and print() writes each of its words.
    program = 'import os; os.write(1, f\'{os.environ["RANK"]} {os.environ["MASTER_ADDR"]}\\n\'.encode())'
    status, out, err = outcome("run", "-H", "localhost:2", "--no-prefix", *python(program))
    assert (status, sorted(out.splitlines()), err) == (0, ["0 127.0.0.1", "1 127.0.0.1"], "")
    assert not fake_ssh.exists()


def test_bytes_pass_as_they_are_and_json_is_alone_on_standard_output(fake_ssh: Path) -> None:
    del fake_ssh
    program = "import sys; sys.stdout.buffer.write(b'\\xff\\x1e half\\r100 %\\nno end')"
    line = [sys.executable, "-m", "switchagg.cli.main", "run", "-H", "node1", "--json", *python(program)]
    done = subprocess.run(line, capture_output=True, check=True)
    assert done.stderr == b"[0] \xff\x1e half\r[0] 100 %\n[0] no end\n"
    assert json.loads(done.stdout)["ranks"][0]["status"] == 0


def test_nothing_secret_is_on_a_command_line(fake_ssh: Path) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    environment = {"SWITCHAGG_SEAL": "", "HIDDEN": "h" + os.urandom(8).hex()}
    with command(["run", "-H", "node1,node2", "--seal", *python(program)], environment) as running:
        pids = [int(said.split()[1]) for said in wait_for_output(running, 2)]
        found = dict(
            each.split("=", 1) for each in Path(f"/proc/{pids[0]}/environ").read_text().split("\0") if each
        )
        hidden = [environment["HIDDEN"], found["SWITCHAGG_TOKEN"]]
        assert found["HIDDEN"] == hidden[0]
        assert found["SWITCHAGG_SEAL"].startswith("fd:"), "a pipe, whose bytes are nowhere else"
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                said = path.read_bytes().decode(errors="replace")
                assert not any(each in said for each in hidden), said
        running.process.send_signal(signal.SIGTERM)
        assert running.finish()[0] == 143
    assert re.fullmatch(
        r"(-o BatchMode=yes node\d exec \S+ -P -m switchagg.launch.remote\n){2}", fake_ssh.read_text()
    )


def test_a_rank_that_fails_ends_those_of_all_hosts(fake_ssh: Path) -> None:
    folder = fake_ssh.parent
    program = f"""
import os, sys, time
rank = os.environ["RANK"]
print("here", flush=True)
there = {str(folder / "here")!r}
open(there + rank, "w").close()
while not all(os.path.exists(there + each) for each in "0123"): time.sleep(0.01)
if rank == "2": sys.exit(9)
time.sleep(600)
"""
    status, out, err = outcome("run", "-H", "node1:2,node2:2", "--grace", "0.2", *python(program))
    assert (status, lines(out)) == (9, {rank: ["here"] for rank in range(4)})
    assert ") ended with status 9; the others have 0.2 seconds to end" in err


def test_a_connection_that_breaks_ends_all(fake_ssh: Path) -> None:
    del fake_ssh
    program = "import os, time; print(os.getppid(), flush=True); time.sleep(600)"
    with command(["run", "-H", "node1,node2", "--grace", "0.2", *python(program)]) as running:
        parent = next(int(said.split()[1]) for said in wait_for_output(running, 2) if said.startswith("[1]"))
        os.kill(parent, signal.SIGKILL)
        status, _, err = running.finish()
    assert status == 137
    assert "switchagg run: the connection to host node2 was killed by SIGKILL" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_signals_and_the_end_of_the_launcher(fake_ssh: Path, number: signal.Signals) -> None:
    del fake_ssh
    program = f"""
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (print("told", flush=True), sys.exit(0)))
print("here", flush=True)
{WAIT}
"""
    with command(["run", "-H", "node1,node2", *python(program)]) as running:
        wait_for_output(running, 2)
        running.process.send_signal(number)
        status, out, _ = running.finish()  # and nothing is left, which `command` checks
    if number == signal.SIGINT:
        assert (status, lines(out)) == (130, {0: ["told"], 1: ["told"]})


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("down", "host down cannot take ranks: its connection ended with status 255; it was to run /"),
        ("old", "host old has switchagg 0.0.1, and this computer "),
    ],
)
def test_a_host_that_cannot_take_ranks_starts_nothing(fake_ssh: Path, host: str, message: str) -> None:
    del fake_ssh
    status, out, err = outcome("run", "-H", f"node1,{host}", *python("print('started')"))
    assert (status, out) == (1, "")
    assert f"switchagg run: {message}" in err


def test_a_signal_while_hosts_are_slow_ends_it(fake_ssh: Path) -> None:
    with command(["run", "-H", "deaf", *python("print('started')")]) as running:
        eventually(fake_ssh.exists)
        time.sleep(0.1)
        running.process.send_signal(signal.SIGTERM)
        assert running.finish()[:2] == (143, "")


def test_commands_that_cannot_be_run_there(fake_ssh: Path) -> None:
    del fake_ssh
    status, _, err = outcome("run", "-H", "node1", "--", "no-such-program")
    assert status == 127
    assert "no-such-program: command not found" in err
    order = {"environment": {}, "folder": "/no/folder", "command": ["true"], "first": 0, "count": 1,
             "prefix": True, "grace": 1, "secret": None}  # fmt: skip
    line = [sys.executable, "-m", "switchagg.launch.remote"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, text=True, **pipes) as there:
        assert there.stdin
        assert there.stderr
        print(json.dumps(order), file=there.stdin, flush=True)  # it stays open: an end would stop the process
        assert "/no/folder: No such file or directory; ranks run in the folder where" in there.stderr.read()
        assert there.wait(timeout=60) == 125
    assert subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


# ---------------------------------------------------------------------- hosts, addresses


def test_hosts_and_their_slots(tmp_path: Path) -> None:
    assert parse_hosts("a:2,b,a,user@c:10") == [Host("a", 3), Host("b", 1), Host("user@c", 10)]
    file = tmp_path / "hosts"
    file.write_text("a slots=2 # fast\n\n# none\nb:3\nc\n")
    hosts = read_hostfile(file)
    assert hosts == [Host("a", 2), Host("b", 3), Host("c", 1)]
    assert filled(hosts, None) == hosts
    assert filled(hosts, 4) == [Host("a", 2), Host("b", 2)]
    with pytest.raises(UsageError, match="-n is 7; accepted: up to 6"):
        filled(hosts, 7)
    for bad in ("", "a:0", "a:x", "a:", "a,,b", "-oProxyCommand=x", "a:-1"):
        with pytest.raises(UsageError, match="accepted: a name, and after ':' 1 slot or more"):
            parse_hosts(bad)
    for text, message in (
        ("a slots=0", "line 1"),
        ("a\nb c d", "line 2.*accepted: NAME, "),
        ("#", "no host"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_hostfile(file)
    with pytest.raises(UsageError, match="none: No such file"):
        read_hostfile(tmp_path / "none")


def test_addresses() -> None:
    here = Answer(Host("localhost", 1), 5000, "", "")
    one = Answer(Host("node1", 1), 5001, "10.0.0.1", "10.0.0.2")
    other = Answer(Host("node2", 1), 5002, "10.9.0.1", "10.9.0.2")
    assert own_address([here]) == "127.0.0.1"
    assert own_address([here, one, one]) == "10.0.0.1"
    assert meeting_point([here, one], "10.0.0.7") == ("10.0.0.7", 5000)
    assert meeting_point([here, one]) == ("10.0.0.1", 5000)
    assert meeting_point([one, other]) == ("10.0.0.2", 5001)
    assert own_address([Answer(Host("root@127.0.0.1", 1), 1, "", "")]) == "127.0.0.1"
    with pytest.raises(UsageError, match=r"host u@nowhere\.invalid has no address that is known here"):
        meeting_point([Answer(Host("u@nowhere.invalid", 1), 1, "", "")])
    with pytest.raises(UsageError, match=r"10\.0\.0\.1 from node1, 10\.9\.0\.1 from node2.*--address"):
        own_address([one, other])
    given = {"PATH": "/x", "HOME": "/root", "SSH_AUTH_SOCK": "s", "SWITCHAGG_ADDRESS": "10.0.0.9", "A": "b"}
    assert passed_on(given) == {"PATH": "/x", "A": "b"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["-n", "2", "--ssh", "rsh"], "ssh is for ranks on several hosts: give -H or --hostfile"),
        ([], "-n is not given; accepted: -n N, -H HOSTS, --hostfile FILE"),
        (["-H", "a:40"], "-n is 40; accepted: 1..32 processes"),
        (["-H", "a", "-n", "2"], "-n is 2; accepted: up to 1"),
    ],
)
def test_options_that_cannot_work(line: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *line, "--", "true"]) == 2
    assert message in capsys.readouterr().err
