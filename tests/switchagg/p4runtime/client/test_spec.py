"""Switches as operators name them: by URL, by table, and with mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from switchagg.errors import UsageError
from switchagg.p4program.program import Station, SwitchAddress
from switchagg.p4runtime.client.spec import P4RuntimeSpec, from_table

URL = "p4runtime://10.0.0.2:9559"


def test_the_least_that_can_be_said() -> None:
    assert from_table("a", {"url": URL}) == P4RuntimeSpec("a", "10.0.0.2:9559")
    assert from_table("a", {"url": "p4runtime://[fd00::2]:9559"}).server == "[fd00::2]:9559"


def test_all_that_can_be_said() -> None:
    table: dict[str, Any] = {
        "url": URL,
        "address": "10.1.0.254",
        "udp_port": 4000,
        "mac": "02:00:00:00:00:fe",
        "stations": ["10.1.0.1, 02:00:00:00:00:01, 1", "10.1.0.2,02:00:00:00:00:02,7"],
        "target": "bmv2",
        "p4info": "info",
        "config": "/etc/config",
        "device": 2**64 - 1,
        "election": 7,
        "words": 64,
        "slots": 4096,
        "controller_port": 255,
        "receive_buffer": 65536,
        "timeout": 1,
        "ca": "ca.pem",
        "cert": "cert.pem",
        "key": "key.pem",
    }
    spec = from_table("a", table, Path("/etc/switchagg"))
    assert spec == P4RuntimeSpec(
        "a",
        "10.0.0.2:9559",
        own=SwitchAddress(0x0200000000FE, "10.1.0.254", 4000),
        stations={"10.1.0.1": Station(1, 0x020000000001), "10.1.0.2": Station(7, 0x020000000002)},
        target="bmv2",
        p4info=Path("/etc/switchagg/info"),
        config=Path("/etc/config"),
        device=2**64 - 1,
        election=7,
        words=64,
        slots=4096,
        controller_port=255,
        receive_buffer=65536,
        timeout=1.0,
        tls=True,
        ca=Path("/etc/switchagg/ca.pem"),
        cert=Path("/etc/switchagg/cert.pem"),
        key=Path("/etc/switchagg/key.pem"),
    )
    assert spec.flooded == (1, 7)


def test_a_url_with_all_of_it() -> None:
    query = "address=10.1.0.254&station=10.1.0.1,02:00:00:00:00:01,1&station=10.1.0.2,02:00:00:00:00:02,2"
    more = "&port=3&port=4&program=a.p4&define=AGG_WORDS=16&define=X&tls=yes&timeout=0.5"
    spec = from_table("a", {"url": f"{URL}?{query}{more}"})
    assert spec.own == SwitchAddress(0x02000A0100FE, "10.1.0.254", 48879)
    assert set(spec.stations) == {"10.1.0.1", "10.1.0.2"}
    assert (spec.flooded, spec.defines, spec.tls, spec.timeout) == ((3, 4), ("AGG_WORDS=16", "X"), True, 0.5)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://10.0.0.2:9559", "url is 'http://10.0.0.2:9559'; accepted: p4runtime://HOST:PORT"),
        ("p4runtime://10.0.0.2", "accepted: p4runtime://HOST:PORT"),
        ("p4runtime://10.0.0.2:0", "accepted: p4runtime://HOST:PORT"),
        ("p4runtime://10.0.0.2:99999", "Port out of range"),
        ("p4runtime://me@10.0.0.2:9559", "accepted: p4runtime://HOST:PORT"),
        ("p4runtime://10.0.0.2:9559/path", "accepted: p4runtime://HOST:PORT"),
        (URL + "?adress=10.1.0.254", "there is no key 'adress'; accepted: url, address, "),
        (URL + "?address", "accepted: p4runtime://HOST:PORT"),
        (URL + "?device=1&device=2", "device in a URL; accepted: each key once"),
        (URL + "?stations=x", "stations in a URL; accepted: each key once"),
        (URL + "?address=10.1.0", "address is '10.1.0'; accepted: an IPv4 address"),
        (URL + "?address=224.0.0.1", "address is '224.0.0.1'; accepted: an IPv4 address"),
        (URL + "?mac=02:00:00:00:00:01", "mac without an address"),
        (
            URL + "?address=10.1.0.9&mac=01:00:00:00:00:01",
            "mac is '01:00:00:00:00:01'; accepted: the MAC of one",
        ),
        (URL + "?station=10.1.0.1", "station is '10.1.0.1'; accepted: IPv4 address, MAC, port"),
        (URL + "?station=10.1.0.1,02:00:00:00:00:01,512", "station's port is '512'; accepted: 0..511"),
        (URL + "?station=10.1.0.1,02:00:00:00:00:01,%C2%B2", "station's port is '²'; accepted: 0..511"),
        (URL + "?target=tofino2", "target is 'tofino2'; accepted: auto, native, p4, bmv2, tofino"),
        (URL + "?target=bmv2", "address is missing"),
        (URL + "?p4info=a", "one of p4info and config is missing"),
        (URL + "?p4info=a&config=b&program=c", "program and p4info are given"),
        (URL + "?define=A=1", "defines without a program"),
        (URL + "?program=a&define=-DA", "define is '-DA'; accepted: NAME or NAME=value"),
        (URL + "?cert=a", "one of cert and key is missing"),
        (URL + "?device=-1", "device is '-1'; accepted: 0..18446744073709551615"),
        (URL + "?election=0", "election is '0'; accepted: 1..18446744073709551615"),
        (URL + "?words=8", "words is '8'; accepted: 16.."),
        (URL + "?slots=99999", "slots is '99999'; accepted: 2..65536"),
        (URL + "?timeout=nan", "timeout is 'nan'; accepted: seconds, 0.1 to 60"),
        (URL + "?timeout=1e400", "timeout is '1e400'; accepted: seconds, 0.1 to 60"),
        (URL + "?tls=perhaps", "tls is 'perhaps'; accepted: yes or no"),
    ],
)
def test_urls_that_cannot_be(url: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_table("rack1", {"url": url})
    assert str(caught.value).startswith("switch rack1: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"url": 7}, "url is 7; accepted: p4runtime://"),
        ({"url": URL + "?device=1", "device": 1}, "device is given in the URL and beside it"),
        ({"device": True}, "device is True; accepted: 0.."),
        ({"device": 1.0}, "device is 1.0; accepted: 0.."),
        ({"stations": "10.1.0.1"}, "stations is '10.1.0.1'; accepted: a list of: IPv4 address"),
        ({"stations": [7]}, "station is 7; accepted: IPv4"),
        ({"stations": ["10.1.0.1,02:00:00:00:00:01,1"] * 2}, "station 10.1.0.1 is given twice"),
        (
            {"address": "10.1.0.1", "stations": ["10.1.0.1,02:00:00:00:00:01,1"]},
            "10.1.0.1 is the switch's address and a station's",
        ),
        ({"ports": 3}, "ports is 3; accepted: a list"),
        ({"ports": [512]}, "port is 512; accepted: 0..511"),
        ({"p4info": 3, "config": "a"}, "p4info is 3; accepted: the name of a file"),
        ({"target": ["bmv2"]}, r"target is ['bmv2']; accepted: auto, "),
        ({"tls": 1.5}, "tls is 1.5; accepted: yes or no"),
    ],
)
def test_tables_that_cannot_be(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_table("rack1", {"url": URL, **more})
    assert problem in str(caught.value)
