"""Listings of a controller and requests to it, against a fake controller with any content."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator

import pytest

from switchagg.cli.main import main
from tests.switchagg.cli.processes import SWITCHAGG, command
from tests.switchagg.control.http.fake_controller import FakeController, fake_controller, fill, job, switch
from tests.waiting import eventually


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    with fake_controller() as running:
        running.jobs = [job("train")]
        running.switches = [switch(jobs=running.jobs)]
        monkeypatch.setenv("SWITCHAGG_CONTROLLER", running.url)
        monkeypatch.delenv("SWITCHAGG_TOKEN", raising=False)
        yield running


class Said:
    """Runs command lines in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *line: str, status: int = 0) -> str:
        assert main(line) == status, self._capsys.readouterr()
        out, self.err = self._capsys.readouterr()
        return out


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


def test_jobs_say_what_was_chosen_and_why(fake: FakeController, say: Said) -> None:
    fake.jobs[0]["members"][2]["state"] = "lost"
    fake.jobs[0]["lost"] = [2]
    headings, row, empty, why, *rest = say("jobs").splitlines()
    assert headings.split()[:6] == ["job", "id", "state", "ranks", "missing", "lost"]
    assert row.split()[:7] == ["train", "1", "running", "3/4", "-", "2", "-"]
    assert "860 MB/s  0.04%  1.2%     skip, block 256, 32 bits  1m15s" in row
    assert empty == ""
    assert why.startswith(
        "train: skip, block 256, 32 bits: 1.2 % of blocks are non-zero at any rank: skipping"
    )
    assert rest == []
    # A name that several tenants use is shown with its tenant.
    fake.jobs.append(job("train", tenant="other", switch="b", id=2))
    assert say("jobs").split()[:3] == ["job", "tenant", "id"]
    assert json.loads(say("jobs", "--json")) == {"jobs": fake.jobs}
    fake.jobs = []
    assert say("jobs") == f"no jobs at {fake.url}\n"


def test_one_job(fake: FakeController, say: Said) -> None:
    fake.jobs[0].update(why="rank 2 is lost", state="failed")
    fake.jobs[0]["members"][2].update(state="lost", why="its process ended")
    out = say("jobs", "train")
    assert re.search(r"^state +failed: rank 2 is lost$", out, re.M)
    assert re.search(r"^ +2  lost    -         120,002  10\.0\.0\.12:41002  its process ended$", out, re.M)
    assert re.search(r"^policy +skip, block 256, 32 bits, for (\d+m)?\d+s$", out, re.M)
    assert re.search(r"^why +1\.2 % of blocks", out, re.M)
    assert re.search(r"^slots +256 \(0 to 255\), 364 words a packet$", out, re.M)
    assert re.search(r"^ +3  joined  0\.3s ago  120,003  10\.0\.0\.13:41003$", out, re.M)
    assert json.loads(say("jobs", "train", "--json")) == fake.jobs[0]
    assert say("jobs", "nobody", status=1) == ""
    assert say.err == "switchagg jobs: there is no job 'nobody'\n"


def test_a_job_that_is_dealt_to_several_switches(fake: FakeController, say: Said) -> None:
    fake.jobs[0]["stripes"] = [
        {"switch": "a", "base": 0, "weight": 32},
        {"switch": "c", "base": 512, "weight": 16},
    ]
    out = say("jobs", "train")
    assert re.findall(r"^dealt to +(.*)$", out, re.M) == [
        "a: slots from 0, weight 32 at first",
        "c: slots from 512, weight 16 at first",
    ]
    fake.jobs.append(job("alone", switch="elsewhere", id=2))
    assert re.search(r"^train .* \+1 ", say("jobs"), re.M)


def test_jobs_that_wait(fake: FakeController, say: Said) -> None:
    fake.jobs = [
        job(
            "big",
            state="queued",
            queue_position=2,
            id=None,
            base=None,
            slots=None,
            rates=None,
            policy=None,
            why="number 2 in the queue, behind 'a': 64 slots asked for",
        ),
        job("new", members=[], missing=[0, 1, 2, 3], state="joining", rates=None, words=None, base=None),
    ]
    out = say("jobs")
    assert "queued (2)" in out
    assert "0-3" in out
    assert out.splitlines()[3:5] == ["", "big: number 2 in the queue, behind 'a': 64 slots asked for"]
    for name in ("big", "new"):
        assert name in say("jobs", name)


def test_switches(fake: FakeController, say: Said) -> None:
    fake.switches = [switch("a", fake.jobs), switch("b", state="down", why="no answer: connection refused")]
    headings, a, b, why = say("switches").splitlines()
    assert headings.split()[:7] == ["switch", "target", "address", "state", "free", "of", "largest"]
    assert a.split()[:5] == ["a", "native", "127.0.0.1:48879", "up", "65536"]
    assert b.split()[3] == "down"
    assert why == "b: no answer: connection refused"
    assert json.loads(say("switches", "--json")) == {"switches": fake.switches}
    fake.switches = []
    assert say("switches") == f"no switches at {fake.url}\n"


def test_events(fake: FakeController, say: Said) -> None:
    assert say("events") == "nothing has happened yet\n"
    fake.add_event("joined", "Rank 0 joined.", job="train", rank=0)
    fake.add_event("lost", "Rank 3 is lost.", job="train", rank=3)
    fake.add_event("opened", "Job b opened.", job="b", switch="native")
    first, second, third = say("events").splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  joined +Rank 0 joined\.  \[job=train rank=0\]", first
    )
    assert second.endswith("lost         Rank 3 is lost.  [job=train rank=3]")
    assert third.endswith("[job=b switch=native]")
    assert say("events", "--since", "1", "--limit", "1") == third + "\n"
    assert say("events", "--job", "train", "--kind", "lost") == second + "\n"
    assert say("events", "--kind", "nothing") == "no such event\n"
    assert json.loads(say("events", "--json")) == {"events": fake.events}
    assert say("events", "--limit", "0", status=2) == ""
    assert say.err == "switchagg events: limit is 0; accepted: 1..1000\n"


def test_events_as_they_happen(fake: FakeController) -> None:
    fake.add_event("joined", "Rank 0 joined.")
    with command(["events", "--follow", "--json"]) as running:
        assert running.process.stdout is not None
        assert json.loads(running.process.stdout.readline())["n"] == 1
        eventually(lambda: fake.streams)
        fake.add_event("lost", "Rank 3 is lost.", rank=3)
        assert json.loads(running.process.stdout.readline())["rank"] == 3
        running.process.send_signal(signal.SIGINT)
        assert running.finish() == (0, "", "")


def test_top_where_there_is_no_terminal(fake: FakeController, say: Said) -> None:
    fake.jobs = [
        job("slow", rates={"GBps": 0.1}),
        job("fast", id=2, rates={"GBps": 2.0}),
        job("idle", rates=None),
    ]
    fake.add_event("lost", "Rank 3 of job slow is lost.")
    out = say("top", "--once")
    assert re.match(rf"\d\d:\d\d:\d\d  {fake.url}  3 jobs, 12 ranks, 2\.1 GB/s\n", out)
    assert out.index("fast") < out.index("slow") < out.index("idle")
    assert "Rank 3 of job slow is lost." in out
    assert "native" in out
    assert "\x1b" not in out
    assert say("top", "-n", "3").count("3 jobs, 12 ranks") == 3
    snapshots = [json.loads(line) for line in say("top", "-n", "2", "--json").splitlines()]
    assert [each["jobs"] for each in snapshots] == [fake.jobs, fake.jobs]
    assert say("top", "-n", "0", status=2) == ""
    assert say.err == "switchagg top: -n is 0; accepted: 1 or more\n"


def test_top_tells_of_a_controller_that_ends(fake: FakeController) -> None:
    with command(["top"]) as running:
        assert running.process.stdout is not None
        running.process.stdout.readline()
        fake.stop()
        status, _, err = running.finish()
    assert status == 1
    assert err.startswith("switchagg top: ")
    assert fake.url in err
    assert err.count("\n") == 1


def test_top_on_a_terminal(fake: FakeController) -> None:
    fake.jobs = []
    fill(fake, 30, 8, seed=3)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*SWITCHAGG, "top"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
    )
    os.close(theirs)
    seen = ""

    def shown(words: str) -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):  # it has ended
                seen += os.read(ours, 65536).decode(errors="replace")
        return words in seen

    try:
        eventually(lambda: shown("30 jobs"))
        fake.stop()
        eventually(lambda: shown("LOST: "))
        fake.jobs.append(job("late", id=99))
        fake.start()
        eventually(lambda: shown("31 jobs"))
        process.send_signal(signal.SIGINT)
        eventually(lambda: shown("\0") or process.poll() is not None)
        assert process.poll() == 0
        assert "Traceback" not in seen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_what_changes_something(fake: FakeController, say: Said) -> None:
    assert say("drain", "a b/c") == "job 'a b/c' is draining\n"
    assert say("drain", "x", "--id", "7", "--tenant", "ads") == "job 'x' is draining\n"
    assert say("drain", "--switch", "rack 1") == "switch 'rack 1' is draining\n"
    assert say("undrain", "--switch", "rack 1") == "switch 'rack 1' takes jobs again\n"
    assert say("evict", "x") == "job 'x' was evicted\n"
    assert fake.calls == [
        "POST /v1/jobs/a%20b%2Fc/drain",
        "POST /v1/jobs/x/drain?id=7&tenant=ads",
        "POST /v1/switches/rack%201/drain",
        "POST /v1/switches/rack%201/undrain",
        "DELETE /v1/jobs/x",
    ]
    assert json.loads(say("evict", "x", "--json")) == {}
    fake.refuse = "job 'x' is not yours"
    for line in (["drain", "x"], ["undrain", "--switch", "b"], ["evict", "x"]):
        assert say(*line, status=1) == ""
        assert say.err == f"switchagg {line[0]}: job 'x' is not yours\n"


def test_a_job_is_ordered(fake: FakeController, say: Said) -> None:
    fake.answer = job("a", 2, state="created", switch="native")
    assert say("job", "create", "a", "--world-size", "2") == (
        "job 'a' is created on switch 'native': 2 ranks may connect\n"
    )
    fake.answer = job("a", 2, state="queued", queue_position=3)
    line = ["job", "create", "a", "--world-size", "2", "--words", "64", "--slots", "128", "--priority", "9"]
    line += ["--deadline", "2.5", "--on-loss", "shrink", "--switch", "b"]
    assert say(*line) == "job 'a' is number 3 in the queue\n"
    fake.answer["why"] = "number 3 in the queue, behind 'b', 1 other: 8 slots asked for"
    assert say(*line) == f"job 'a' is {fake.answer['why']}\n"
    assert json.loads(say(*line, "--json")) == fake.answer
    assert fake.bodies[:2] == [
        {"name": "a", "world_size": 2},
        {
            "name": "a",
            "world_size": 2,
            "words": 64,
            "slots": 128,
            "priority": 9,
            "deadline": 2.5,
            "on_loss": "shrink",
            "switch": "b",
        },
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["drain"], "name a job, or a switch with --switch"),
        (["drain", "a", "--switch", "b"], "name a job, or a switch with --switch"),
        (["drain", "--switch", "b", "--id", "3"], "--id and --tenant are of a job"),
        (["jobs", "--id", "3"], "name the job too"),
        (["events", "--since", "-1"], "since is -1; accepted: 0 or more"),
        (
            ["jobs", "--controller", "ftp://x:1"],
            "controller is 'ftp://x:1'; accepted: http://host:port, https",
        ),
        (
            ["jobs", "--controller", "https://127.0.0.1:1", "--ca", "/proc/nonexistent"],
            "'/proc/nonexistent', which cannot",
        ),
    ],
)
def test_what_cannot_be_asked(line: list[str], said: str, fake: FakeController, say: Said) -> None:
    assert say(*line, status=2) == ""
    assert said in say.err
    assert say.err.count("\n") == 1
    assert fake.calls == []


COMMANDS = [
    ["jobs"],
    ["slots"],
    ["stats"],
    ["switches"],
    ["events"],
    ["top", "--once"],
    ["drain", "a"],
    ["undrain", "--switch", "a"],
    ["evict", "a"],
    ["job", "create", "a", "--world-size", "2"],
    ["job", "list"],
    ["job", "drain", "a"],
    ["job", "evict", "a"],
]


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line[0])
def test_without_the_token(line: list[str], say: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_controller(token="secret") as fake:
        monkeypatch.setenv("SWITCHAGG_CONTROLLER", fake.url)
        monkeypatch.setenv("SWITCHAGG_TOKEN", "wrong")
        assert say(*line, status=1) == ""
        assert say.err.startswith(f"switchagg {line[0]}: no tenant has this token")
        assert say.err.count("\n") == 1
        assert fake.calls == []
        monkeypatch.setenv("SWITCHAGG_TOKEN", "secret")
        fake.answer = job("a")
        if line[0] not in ("slots", "stats"):  # which the fake does not serve
            say(*line)


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line[0])
def test_without_a_controller(line: list[str], say: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHAGG_CONTROLLER", raising=False)
    assert say(*line, status=2) == ""
    assert "no controller named: give --controller http://host:port or set SWITCHAGG_CONTROLLER" in say.err


def test_verbs_of_job_do_what_the_short_commands_do(fake: FakeController, say: Said) -> None:
    fake.jobs = [job("a"), job("b")]
    fake.answer = job("a")
    for verb, short in (
        ("list", "jobs"),
        ("show a", "jobs a"),
        ("drain a", "drain a"),
        ("evict a", "evict a"),
    ):
        calls = len(fake.calls)
        answers = [say(*line.split(), "--json") for line in (f"job {verb}", short)]
        assert [each is not None for each in map(json.loads, answers)] == [True, True]
        made = fake.calls[calls:]
        assert made[: len(made) // 2] == made[len(made) // 2 :]
    assert len(fake.calls) == 4


def test_strangers_words_do_not_reach_the_terminal(fake: FakeController, say: Said) -> None:
    evil = "a\x1b[2J\x07\u202eb\nc"
    fake.jobs = [job(evil, tenant=evil, switch=evil, policy={"block": 1, "dense": True, "why": evil})]
    fake.switches = [switch(evil, fake.jobs, why=evil)]
    fake.add_event("lost", evil, job=evil)
    for line in (["jobs"], ["jobs", evil], ["switches"], ["events"], ["top", "--once"], ["evict", evil]):
        out = say(*line)
        assert not set(out) & {"\x1b", "\x07", "\u202e"}, line
        assert "\\x1b[2J" in out
