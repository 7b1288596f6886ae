"""P4Runtime over TLS, with certificates that openssl makes for the test."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from switchagg.errors import UsageError
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.native.device import NativeDevice
from switchagg.p4runtime.server.server import P4RuntimeServer, Tls
from tests.switchagg.p4runtime.plain_client import PlainClient
from tests.switchagg.p4runtime.server.native_slot_table import TableSwitch

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on PATH")


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority's ca.pem, and a certificate and a key of server and client."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    _openssl("req", "-x509", *key, "-subj", "/CN=ca", "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        request = folder / f"{name}.csr"
        _openssl("req", *key, "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", request)
        authority = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "2")
        extensions = ("-extfile", folder / "names")
        _openssl("x509", "-req", "-in", request, *authority, *extensions, "-out", folder / f"{name}.pem")
    return folder


def _version(address: str, folder: Path, *, certificate: bool) -> str:
    mine = (folder / "client.pem", folder / "client.key") if certificate else None
    with PlainClient(0, address, authority=folder / "ca.pem", certificate=mine) as client:
        return client.version()


def _refused(address: str, credentials: Any) -> None:
    channel = (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    )
    call = channel.unary_unary(
        "/p4.v1.P4Runtime/Capabilities",
        request_serializer=p4runtime_pb2.CapabilitiesRequest.SerializeToString,
        response_deserializer=p4runtime_pb2.CapabilitiesResponse.FromString,
    )
    with channel, pytest.raises(grpc.RpcError) as caught:
        call(p4runtime_pb2.CapabilitiesRequest(), timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_command_with_tls_and_clients_certificates(files: Path) -> None:
    options = ("--grpc-server-cert", files / "server.pem", "--grpc-server-key", files / "server.key")
    clients = ("--grpc-server-cacert", files / "ca.pem", "--grpc-server-with-client-auth")
    line = [sys.executable, "-m", "switchagg.cli.main", "switch", "--port", "0", "--json", "--"]
    line += ["--grpc-server-addr", "localhost:0", "--grpc-server-ssl", *map(str, (*options, *clients))]
    switch = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert switch.stdout is not None
    try:
        address = json.loads(switch.stdout.readline())["p4runtime"]
        assert _version(address, files, certificate=True) == "1.4.1"
        _refused(address, grpc.ssl_channel_credentials((files / "ca.pem").read_bytes()))
        _refused(address, None)
    finally:
        switch.send_signal(signal.SIGTERM)
        switch.communicate(timeout=240)
    assert switch.returncode == 0


def test_tls_without_clients_certificates(files: Path) -> None:
    tls = Tls(files / "server.pem", files / "server.key")
    with P4RuntimeServer(NativeDevice(TableSwitch(64), 64), "localhost:0", tls=tls) as server:
        assert _version(server.address, files, certificate=False) == "1.4.1"
        _refused(server.address, None)


def test_files_that_are_none(files: Path) -> None:
    bad = files / "bad.pem"
    bad.write_text("no certificate")
    certificate, key = files / "server.pem", files / "server.key"
    for tls, problem in (
        (Tls(files / "none.pem", key), "none.pem: No such file or directory; name a PEM file"),
        (Tls(bad, key), "bad.pem and .*server.key are no certificate"),
        (Tls(certificate, files / "client.key"), "client.key are no certificate .* and its key"),
        (Tls(certificate, key, bad), "bad.pem holds no certificate"),
    ):
        with pytest.raises(UsageError, match=problem):
            P4RuntimeServer(NativeDevice(TableSwitch(64), 64), tls=tls)
