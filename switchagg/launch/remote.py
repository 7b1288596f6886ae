"""The part of `switchagg run -H` on one host: `python -m switchagg.launch.remote`, started by ssh.

    launcher (hosts.py) --stdin:  a line of JSON to start, one for each signal--> this process --> ranks
                        <-stdout: the ranks' output, and control lines between--+

Control lines begin with `switchagg.launch.processes.CONTROL`. Nothing secret is on a command line: the
environment and the secret of sealed sums come on standard input. When that closes, the connection is gone:
the ranks get SIGTERM, and SIGKILL after their grace.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from typing import IO, Any, Final

import switchagg
from switchagg.launch.processes import CONTROL, CannotExecute
from switchagg.launch.ranks import free_port, rank_environments, run_ranks, sealed_pipes, unusable
from switchagg.launch.signals import stop_signals
from worker_lib.secret import Secret

NO_FOLDER: Final = 125  # exit status


def main() -> int:
    """Runs the ranks that the launcher names; returns the exit status of `run_ranks`, or a shell's."""
    with stop_signals() as signals:
        _tell({
            "version": switchagg.__version__,
            "port": free_port("0.0.0.0"),
            "connection": os.environ.get("SSH_CONNECTION", ""),
        })  # fmt: skip
        # Without a buffer, whose lock a thread that waits would hold when the interpreter ends.
        source = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  (to the end)
        line = source.readline()
        if not line:
            return 0  # the launcher has changed its mind
        order: dict[str, Any] = json.loads(line)
        threading.Thread(target=_obey, args=(source,), daemon=True).start()
        try:
            os.chdir(order["folder"])
        except OSError as error:
            _say(f"{order['folder']}: {error.strerror}; ranks run in the folder where switchagg run does")
            return NO_FOLDER
        common = os.environ | order["environment"]
        os.environ["PATH"] = common.get("PATH", os.defpath)  # where the command is looked for
        if (status := unusable(order["command"][0], _say)) is not None:
            return status
        with contextlib.ExitStack() as stack:
            count, first = order["count"], order["first"]
            pipes = []
            if order["secret"] is not None:
                pipes = sealed_pipes(Secret(bytearray.fromhex(order.pop("secret"))), count, stack)
            try:
                return run_ranks(
                    [order["command"]] * count,
                    rank_environments(common, count, pipes, first),
                    prefix=order["prefix"],
                    grace=order["grace"],
                    say=_say,
                    signals=signals,
                    inherited=pipes,
                    ended=lambda rank, status: _tell({"ended": [rank, status]}),
                    first=first,
                    bind=order["bind"],
                )
            except CannotExecute as error:
                _say(str(error))
                return 126


def _obey(source: IO[bytes]) -> None:
    """Passes on the launcher's signals to this process, which passes them on to its ranks."""
    for line in source:
        os.kill(os.getpid(), int(json.loads(line)["signal"]))
    os.kill(os.getpid(), signal.SIGTERM)


def _tell(what: dict[str, Any]) -> None:
    # At once, so that output of ranks that write to the same pipe is before it or behind it.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, CONTROL + json.dumps(what).encode() + b"\n")


def _say(message: str) -> None:
    print(f"switchagg run: on {os.uname().nodename}: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
