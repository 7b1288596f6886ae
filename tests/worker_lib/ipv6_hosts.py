"""Ranks on hosts of their own, in namespaces with addresses of fd00::/64, and a switch on one more.

host 1 --veth--.
host 2 --veth--+--bridge0, fd00::fe: switch and controller
host 3 --veth--'
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import worker_lib
from switchagg.control.embedded import EmbeddedController
from tests.worker_lib.harness import several_sums, together


def ip(*words: str, pid: int | None = None) -> None:
    before = [] if pid is None else ["nsenter", "-t", str(pid), "-n"]
    subprocess.run([*before, "ip", *words], check=True)


def digest(session: worker_lib.Session, seed: int) -> str:
    return hashlib.sha256(b"".join(several_sums(session, seed))).hexdigest()


def rank(url: str, number: int, ranks: int, seed: int) -> None:
    with worker_lib.connect(url, "job", number, ranks, words=359, timeout=30) as session:
        print(digest(session, seed), flush=True)


def fragments() -> int:
    counters = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return int(counters["Ip6FragCreates"]) + int(counters["Ip6ReasmReqds"])


def main() -> None:
    if len(sys.argv) == 5:
        rank(sys.argv[1], *map(int, sys.argv[2:]))
        return
    seed, ranks = int(sys.argv[1]), int(sys.argv[2])
    ip("link", "set", "lo", "up")
    ip("link", "add", "bridge0", "type", "bridge")
    ip("address", "add", "fd00::fe/64", "dev", "bridge0", "nodad")
    ip("link", "set", "bridge0", "up")
    own = os.readlink("/proc/self/ns/net")
    holders = [subprocess.Popen(["unshare", "-n", "sleep", "infinity"]) for _ in range(ranks)]
    try:
        for number, holder in enumerate(holders):
            while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
                time.sleep(0.002)
            ip("link", "add", f"sw{number}", "type", "veth", "peer", "name", "data", "netns", str(holder.pid))
            ip("link", "set", f"sw{number}", "master", "bridge0", "up")
            ip("address", "add", f"fd00::{number + 1}/64", "dev", "data", "nodad", pid=holder.pid)
            ip("link", "set", "lo", "up", pid=holder.pid)
            ip("link", "set", "data", "up", pid=holder.pid)
        with EmbeddedController("127.0.0.1") as host:
            expected = together(host.url, ranks, digest, seed)[0]
        with EmbeddedController("fd00::fe") as host:
            line = [sys.executable, "-m", "tests.worker_lib.ipv6_hosts", host.url]
            processes = [
                subprocess.Popen(
                    ["nsenter", "-t", str(each.pid), "-n", *line, str(number), str(ranks), str(seed)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for number, each in enumerate(holders)
            ]
            hashes = [each.communicate(timeout=80)[0].strip() for each in processes]
            largest = host.switch.largest_words
        print(json.dumps({
            "expected": expected, "hashes": hashes, "largest_words": largest, "fragments": fragments(),
        }))  # fmt: skip
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


if __name__ == "__main__":
    main()
