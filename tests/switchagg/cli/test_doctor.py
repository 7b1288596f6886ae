"""`switchagg doctor` on a computer that is broken in many ways: each is named, with its fix."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults

REPOSITORY = Path(__file__).parents[3]
Found = dict[str, dict[str, str]]
_HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "lark":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""


def _doctor(*words: str, prefix: tuple[str, ...] = (), path: str = "", **variables: str) -> tuple[int, Found]:
    """Returns the exit status, and the findings by name."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SWITCHAGG_", "SLURM"))}
    search = os.pathsep.join(filter(None, [path, str(REPOSITORY), *sys.path]))
    run = subprocess.run(
        [*prefix, sys.executable, "-m", "switchagg.cli.main", "doctor", "--json", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env=clean | {"PYTHONPATH": search} | variables,
    )
    assert "Traceback" not in run.stderr, run.stderr
    said = json.loads(run.stdout)
    assert run.returncode == (1 if said["bad"] else 0)
    assert all(each["fix"] for each in said["findings"] if each["state"] != "good")
    return run.returncode, {each["name"]: each for each in said["findings"]}


def _is(found: Found, name: str, state: str, text: str, fix: str) -> None:
    each = found[name]
    assert each["state"] == state, each
    assert text in each["text"], each
    assert fix in each["fix"], each


def test_a_process_that_lacks_things(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_HIDE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken, socket.socket() as closed:
        taken.bind(("0.0.0.0", 0))
        closed.bind(("127.0.0.1", 0))
        status, found = _doctor(
            "--port", str(taken.getsockname()[1]),
            "--controller", f"http://127.0.0.1:{closed.getsockname()[1]}",
            prefix=("/bin/sh", "-c", 'ulimit -n 128; exec "$0" "$@"'),
            path=str(tmp_path), PATH="/nowhere", RANK="0",
        )  # fmt: skip
    assert status == 1
    _is(found, "port", "bad", "cannot be bound: Address already in use", "ss -ulpn")
    _is(found, "controller", "bad", "refused", "is it started")
    _is(found, "descriptors", "bad", "128 files", "ulimit -Hn")
    _is(found, "variables", "bad", "RANK", "unset them")
    assert found["Mininet"]["state"] == found["p4model"]["state"] == found["p4c-bm2-ss"]["state"] == "missing"
    assert "pip install 'switchagg[p4model]'" in found["p4model"]["fix"]
    assert "install" in found["Mininet"]["fix"]
    assert found["a job here"]["state"] == "good"


def _can(*words: str) -> bool:
    there = shutil.which(words[0]) is not None
    return there and subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_a_network_that_is_down() -> None:
    link = "ip link add v0 mtu 600 type veth peer name v1"
    if not _can("unshare", "-rn", "sh", "-c", link):
        pytest.skip("no network namespaces here")
    status, found = _doctor(prefix=("unshare", "-rn", "sh", "-c", f'{link}; exec "$0" "$@"'))
    assert status == 1
    _is(found, "MTU", "missing", "v0 carries 600 bytes", "ip link set v0 mtu 1500")
    _is(found, "a job here", "bad", "", "ip link set lo up")


def test_a_user_without_permissions() -> None:
    if not _can("unshare", "-U", "true"):
        pytest.skip("no user namespaces here")
    _, found = _doctor(prefix=("unshare", "-U"))
    _is(found, "packet sockets", "missing", "no switch between interfaces", "CAP_NET_RAW")
    if int(Path("/proc/sys/net/core/rmem_max").read_text()) < 1 << 24:
        _is(found, "switch socket", "bad", "granted a receive buffer", "sysctl -w net.core.rmem_max=")


class _Old(BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response_only(200 if self.path == "/healthz" else 401)
        self.send_header("Date", formatdate(1_700_000_000, usegmt=True))
        body = b'{"status": "ok", "version": "0.0.1"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def old_controller() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Old) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_controller_of_another_version_and_time(old_controller: str) -> None:
    status, found = _doctor("--controller", old_controller)
    assert status == 1
    _is(found, "version", "bad", "the controller has 0.0.1", "same version")
    _is(found, "clock", "bad", "s off", "NTP")
    _is(found, "token", "bad", "none is set", "SWITCHAGG_TOKEN")


def test_packets_that_do_not_arrive() -> None:
    with EmbeddedController(faults=Faults(seed=1, loss=1.0), links=False) as controller:
        status, found = _doctor("--controller", controller.url)
    assert status == 1
    assert found["token"]["state"] == found["version"]["state"] == found["clock"]["state"] == "good"
    _is(found, "a job there", "bad", "", "firewalls let UDP through")


def test_a_controller_that_works() -> None:
    with EmbeddedController() as controller:
        _, found = _doctor("--controller", controller.url)
    assert found["a job there"]["state"] == "good"
