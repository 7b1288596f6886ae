"""https, with certificates that the test makes."""

from __future__ import annotations

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchagg.control.client import ControllerClient
from switchagg.control.http.server import TlsFiles
from switchagg.errors import SwitchError, UsageError
from tests.switchagg.control.served_controller import ServedController, serving
from tests.waiting import eventually
from worker_lib.join import Membership, join


@dataclass
class Papers:
    """PEM files: an authority, a certificate of 127.0.0.1 that it signed, and keys."""

    authority: Path
    certificate: Path
    key: Path
    encrypted: Path
    other_key: Path


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("tls")
    found = Papers(
        *(folder / name for name in ("ca.pem", "cert.pem", "key.pem", "encrypted.pem", "other.pem"))
    )
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
    ca_key, request = folder / "ca.key", folder / "request.pem"
    _openssl(
        "req", "-x509", *curve, "-keyout", ca_key, "-out", found.authority, "-subj", "/CN=test", "-days", 2
    )
    _openssl("req", *curve, "-keyout", found.key, "-out", request, "-subj", "/CN=controller")
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(
        "x509", "-req", "-in", request, "-CA", found.authority, "-CAkey", ca_key, "-CAcreateserial",
        "-extfile", names, "-days", 2, "-out", found.certificate,
    )  # fmt: skip
    _openssl("ec", "-in", found.key, "-aes256", "-passout", "pass:secret", "-out", found.encrypted)
    _openssl("ecparam", "-genkey", "-name", "prime256v1", "-out", found.other_key)
    return found


def served(papers: Papers) -> TlsFiles:
    return TlsFiles(papers.certificate, papers.key)


def test_workers_and_people(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHAGG_CA", str(papers.authority))
    with serving(tls=served(papers)) as place:
        assert place.url.startswith("https://127.0.0.1:")

        def one(rank: int) -> Membership:
            return join(place.url, "a", rank, 2, "127.0.0.1", 42000 + rank, timeout=100, deadline=600)

        with ThreadPoolExecutor(2) as pool:
            zero, one_ = pool.map(one, range(2))
            client = ControllerClient(place.url, timeout=60.0)
            assert [job["state"] for job in client.jobs()] == ["running"]
            event = pool.submit(zero.next_event)
            assert not event.done()
            one_.close_stream()  # as a process that ends
            lost = event.result(60)
            assert lost is not None
            assert (lost["event"], lost["ranks"]) == ("lost", [1])
            waiting = pool.submit(zero.next_event)
            zero.close_stream()  # wakes the thread that reads
            while (last := waiting.result(60)) is not None:
                assert last["event"] != "admitted"
                waiting = pool.submit(zero.next_event)
        eventually(lambda: client.jobs() == [])


def test_a_stranger_is_not_trusted(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHAGG_CA", raising=False)
    with serving(tls=served(papers)) as place:
        with pytest.raises(SwitchError, match=r"is not to be trusted: .*; SWITCHAGG_CA names the PEM file"):
            ControllerClient(place.url).jobs()
        with pytest.raises(SwitchError, match=r"is not to be trusted: .*(mismatch|not valid for)"):
            ControllerClient(place.url.replace("127.0.0.1", "localhost"), ca=str(papers.authority)).jobs()
        with pytest.raises(UsageError, match="SWITCHAGG_CA is '/nowhere', which cannot be read"):
            ControllerClient(place.url, ca="/nowhere")
        with pytest.raises(UsageError, match="accepted: a PEM file"):
            ControllerClient(place.url, ca=str(papers.key)).jobs()


def test_the_wrong_scheme(papers: Papers, caplog: pytest.LogCaptureFixture) -> None:
    told = r"did not answer: .*; does it serve https://\?"
    with serving(tls=served(papers)) as place, pytest.raises(SwitchError, match=told):
        ControllerClient(place.url.replace("https", "http")).jobs()
    with (
        serving() as plain,
        pytest.raises(SwitchError, match=r"no TLS with the controller .*does it serve http"),
    ):
        ControllerClient(plain.url.replace("http", "https")).jobs()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_client_that_never_shakes_hands(papers: Papers) -> None:
    """It is in nobody's way, nor in that of the end."""
    with serving(tls=served(papers)) as place:
        with socket.create_connection(("127.0.0.1", place.port)) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert works(place, papers)
        with socket.create_connection(("127.0.0.1", place.port)):
            assert works(place, papers)
            place.server.close()


def works(place: ServedController, papers: Papers) -> bool:
    return ControllerClient(place.url, ca=str(papers.authority)).health()["status"] == "ok"


def test_files_that_do_not_serve(papers: Papers, tmp_path: Path) -> None:
    for certificate, key, said in (
        (tmp_path / "none", papers.key, "tls-cert is .*none: No such file"),
        (papers.certificate, tmp_path, "tls-key is .*: Is a directory"),
        (papers.certificate, papers.other_key, "accepted: PEM files of a certificate and its key"),
        (
            papers.certificate,
            papers.encrypted,
            "accepted: PEM files of a certificate and its key, not encrypted",
        ),
        (papers.key, papers.key, "accepted: PEM files"),
    ):
        with pytest.raises(UsageError, match=said), serving(tls=TlsFiles(certificate, key)):
            pass
