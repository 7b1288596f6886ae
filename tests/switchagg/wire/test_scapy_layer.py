from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from switchagg.wire.header import DEFAULT_PORT, Flag, Header, Op, encode

pytest.importorskip("scapy")

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Padding, Raw

from switchagg.wire.scapy_layer import SwitchAgg


def test_a_built_packet_is_the_codecs() -> None:
    words = [1, 2, 0xFFFFFFFF, 4] * 4
    layer = SwitchAgg(op="SUM", flags="payload+retransmission", job=7, token=0xA0, seq=9, slot=1, words=words)
    header = Header(Op.SUM, Flag.RETRANSMISSION, 7, 0xA0, 9, 1)
    assert bytes(layer) == encode(header, np.array(words, np.uint32))
    assert bytes(SwitchAgg(op=2, job=7, reply=5)) == encode(Header(Op.RESULT, 0, 7, 0, 0, 0, 5))


@pytest.mark.parametrize(
    "ports", [{"dport": DEFAULT_PORT, "sport": 4000}, {"sport": DEFAULT_PORT, "dport": 4000}]
)
def test_a_frame_is_dissected_by_its_port_either_way(ports: dict[str, int]) -> None:
    words = list(range(100, 117))
    payload = encode(Header(Op.RESULT, 0, 7, 0xFEEDF00D, 2**32 - 1, 11, 3), np.array(words, np.uint32))
    packet = Ether(bytes(Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(**ports) / Raw(payload)))
    layer = packet[SwitchAgg]
    assert (layer.version, layer.op, layer.job, layer.token) == (1, Op.RESULT, 7, 0xFEEDF00D)
    assert (layer.seq, layer.slot, layer.reply) == (2**32 - 1, 11, 3)
    assert layer.flags.payload
    assert not layer.flags.retransmission
    assert layer.words == words
    assert bytes(layer) == payload
    assert layer.summary() == "SwitchAgg RESULT job 7 seq 4294967295, 17 words"


def test_padding_of_a_short_frame_is_not_payload() -> None:
    skip = encode(Header(Op.SUM, 0, 7, 1, 2, 3))
    frame = bytes(Ether() / IP() / UDP(dport=DEFAULT_PORT) / Raw(skip)) + bytes(2)
    layer = Ether(frame)[SwitchAgg]
    assert isinstance(layer.payload, Padding)
    assert bytes(layer.payload) == bytes(2)
    assert not layer.flags.payload


def test_bytes_that_do_not_fit_stay_raw() -> None:
    packet = UDP(bytes(UDP(dport=DEFAULT_PORT) / Raw(bytes.fromhex("1000 0007") + bytes(12) + b"xyz")))
    assert packet[Raw].load == b"xyz"


def test_without_scapy_the_error_says_what_to_install() -> None:
    code = """
        import sys
        sys.modules["scapy.fields"] = None
        import switchagg.wire.header
        try:
            import switchagg.wire.scapy_layer
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "switchagg.wire.scapy_layer needs scapy: pip install 'switchagg[scapy]'\n"
