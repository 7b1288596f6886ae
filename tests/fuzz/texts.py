"""Texts from outside: options, configuration, jobs, launchers' variables, heartbeats, packet scripts, URLs.

Each text gives a value or an error of switchagg with a message, and no other exception.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from switchagg.bench.grid import parse_bits, parse_list, parse_size
from switchagg.cli.controller import _listen
from switchagg.cli.static_jobs import load_jobs
from switchagg.control.switch_specs import parse_switch, read_configuration, size, wiring
from switchagg.demo.settings import parse_embedding
from switchagg.emulator.rates import Rate
from switchagg.errors import SwitchAggError
from switchagg.http_client import endpoint
from switchagg.p4model.runtime.stf import parse_stf
from switchagg.rules.wiring import parse_hosts
from switchagg.wire.heartbeat import Heartbeat, Report
from tests.fuzz.mutations import TEXTS, bytes_changed, value_changed
from worker_lib import launchers

_CONFIGURATION: Final = """
[controller]
listen = "10.0.0.1:8080"
state = "state"
words = 352
slots = 512
[switch.lab]
url = "native:4096"
address = "10.0.0.5"
port = 48879
memory = "512M"
[switch.leaf]
url = "native?parent=lab&host=10.0.1.0/24"
hosts = ["10.0.2.0/24"]
"""
_WORKER: Final = {"bit": 0, "ip": "10.0.0.1", "port": 5000, "token": 7, "mac": "02:00:00:00:00:01"}
_JOB: Final = {
    "job": 1,
    "base": 0,
    "slots": 4,
    "words": 64,
    "result_token": 5,
    "workers": [_WORKER],
    "first_seq": 0,
}
_SCRIPT: Final = """
# a comment
add t hdr.h.a:0x05 forward(port:3)
setdefault t drop()
packet 0 00 11 22
expect 3 00 ** 22$
wait
mirroring_add 5 6
mc_mgrp_create 1
register_write r 0 5
check_counter c(0) == 1
"""
_VARIABLES: Final = {
    "SWITCHAGG_RANK": "0",
    "SWITCHAGG_WORLD_SIZE": "2",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMI_RANK": "0",
    "PMI_SIZE": "3",
    "PMIX_RANK": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[003-006,9],login",
    "SLURM_JOB_ID": "77",
    "JOB_COMPLETION_INDEX": "1",
}
_TEXTS: Final[dict[Callable[[str], Any], tuple[str, ...]]] = {
    parse_switch: (
        "lab=native:4096?address=10.0.0.5&port=48879&memory=2G",
        "leaf=native?parent=lab&host=10.0.1.0/24",
        "r=p4runtime://10.0.0.2:9559?address=10.1.0.254&station=10.1.0.1,02:00:00:00:00:01,1",
    ),
    parse_size: ("4096", "64M", "1.5G"),
    lambda text: parse_list(text, "bits", parse_bits): ("8", "16,exact"),
    parse_embedding: ("65536x64",),
    Rate.parse: ("1Gbit", "100 Mbit/s", "2.5Gbit"),
    _listen: ("127.0.0.1:8080", "[::1]:0"),
    endpoint: ("http://127.0.0.1:8080", "https://[::1]:1"),
    lambda text: size("memory", text): ("512M", "1048576"),
    lambda text: parse_hosts("hosts", [text]): ("10.0.0.0/8", "10.0.0.1"),
    lambda text: parse_list(text, "sizes", parse_size): ("1M,2M", "4K"),
    lambda text: parse_stf(text, "script"): (_SCRIPT,),
    launchers.first_host: ("node[003-006,9],login",),
}


@contextlib.contextmanager
def target(folder: Path) -> Iterator[Callable[[Random], None]]:
    """Yields a function that reads one text."""
    written = folder / "written"
    beat = Heartbeat(bytes(16), 5, Report(collectives=3)).pack()
    readers = list(_TEXTS)

    def configuration(random: Random) -> None:
        written.write_bytes(bytes_changed(_CONFIGURATION.encode(), random))
        wiring(read_configuration(written).switches)

    def jobs(random: Random) -> None:
        content: Any = [_JOB, _JOB]
        for _ in range(random.choice((1, 1, 3))):
            content = value_changed(content, random)
        data = json.dumps(content).encode("utf-8", "surrogatepass")
        if random.randrange(10) == 0:
            data = b"[" * random.choice((50, 5000)) + data
        written.write_bytes(bytes_changed(data, random) if random.randrange(3) == 0 else data)
        load_jobs(written)

    def variables(random: Random) -> None:
        environment = {}
        for name in random.sample(list(_VARIABLES), random.choice((2, 5, 12))):
            environment[name] = _text(_VARIABLES[name], random)
        launchers.export(environment)

    def execute(random: Random) -> None:
        with warnings.catch_warnings(), contextlib.suppress(SwitchAggError):
            warnings.simplefilter("ignore")
            match random.randrange(8):
                case 0:
                    configuration(random)
                case 1:
                    jobs(random)
                case 2:
                    variables(random)
                case 3:
                    Heartbeat.unpack(bytes_changed(beat, random))
                case _:
                    reader = random.choice(readers)
                    reader(_text(random.choice(_TEXTS[reader]), random))

    yield execute


def _text(text: str, random: Random) -> str:
    match random.randrange(6):
        case 0:
            return random.choice(TEXTS)
        case 1:
            return text.replace(random.choice(text), random.choice((*TEXTS, "9" * 5000, "9" * 400)))
        case 2:
            return text
    return bytes_changed(text.encode(), random).decode("utf-8", "replace")
