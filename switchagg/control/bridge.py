# ruff: noqa: ARG001, ARG002
"""The coming Controller's face on the present one."""

from __future__ import annotations

import threading
from typing import Any

from switchagg.control.controller import Controller as Old
from switchagg.control.records import Tenant
from switchagg.errors import AdmissionError


class Tenants:
    configured = False

    def authenticate(self, bearer: str) -> Tenant | None:
        return None


class Bridge:
    def __init__(self, driver: Any, **options: Any) -> None:
        self.old = Old(driver, **options)
        self.driver = driver
        self.tenants = Tenants()
        self.heartbeat_address: Any = None
        self._members: dict[Any, Any] = {}
        self._lines: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="switchagg-ticker", daemon=True)

    def start(self) -> None:
        self._ticker.start()

    def _tick(self) -> None:
        while not self._stop.wait(0.02):
            self.old.expire()

    @property
    def busy(self) -> bool:
        return self.old.busy

    def close(self) -> None:
        self._stop.set()
        self.old.close()
        for line in list(self._members):
            line.send({"event": "stopping"})
            line.close()

    def heartbeat(self, cookie: bytes, sequence: int, fields: Any, now: float | None = None) -> bool:
        return False

    def join(self, tenant: Tenant, name: str, request: Any, line: Any) -> None:
        cell: list[Any] = []
        ready = threading.Event()

        def settle() -> None:
            threading.Thread(target=settle_now, name="switchagg-settle").start()

        def settle_now() -> None:
            ready.wait()
            member = cell[0]
            if member.refusal is not None:
                line.refuse(member.refusal)
                return
            a = member.admission
            host, port = self.driver.address
            line.send(
                {
                    "event": "admitted", "job": a.job, "token": a.token, "result_token": a.result_token,
                    "base": a.base, "slots": a.slots, "words": a.words, "first_seq": a.first_seq,
                    "policy": {"block": a.policy.block, "dense": a.policy.dense}, "worker_bit": a.worker_bit,
                    "rank": a.rank, "world_size": a.world_size, "places": list(a.places),
                    "switch": {"name": "switch", "address": host, "port": port,
                               "receive_buffer": self.driver.receive_buffer, "link": self.driver.link},
                    "deadline": a.deadline, "on_loss": a.on_loss.value,
                    "heartbeat": {"address": self.heartbeat_address[0], "port": self.heartbeat_address[1],
                                  "cookie": a.cookie.hex(), "interval": a.interval},
                }
            )  # fmt: skip

        member = self.old.join(name, request, settle)
        cell.append(member)
        self._members[line] = member
        ready.set()

    def attach(self, tenant: Tenant, name: str, rank: int, token: int, line: Any) -> None:
        raise AdmissionError("attach is not there yet", "not_found")

    def line_closed(self, line: Any) -> None:
        member = self._members.pop(line, None)
        if member is not None:
            self.old.lost(member)
            if member.job.state.value == "failed":
                for other, its in list(self._members.items()):
                    if its.job is member.job:
                        other.send({"event": "lost", "ranks": [member.rank], "why": "its process ended",
                                    "on_loss": "fail"})  # fmt: skip

    def leave(self, tenant: Tenant, name: str, rank: int, token: int, begun: int | None = None) -> None:
        self.old.leave(name, rank, token)
        for line, member in list(self._members.items()):
            if member.token == token and member.rank == rank:
                line.close()

    def jobs(self, tenant: Tenant) -> Any:
        return self.old.jobs()

    def job(self, tenant: Tenant, name: str, job_id: int | None = None) -> Any:
        return self.old.job(name, job_id)

    def slots(self, tenant: Tenant) -> Any:
        return self.old.slots()

    def waiting_slots(self, tenant: Tenant, name: str) -> Any:
        return self.old.waiting_slots(name)

    def stats(self, tenant: Tenant) -> Any:
        return self.old.stats()

    def health(self) -> Any:
        host, port = self.driver.address
        return {
            "status": "ok",
            "switch": {"address": host, "port": port, "receive_buffer": self.driver.receive_buffer,
                       "link": self.driver.link},
            "warnings": self.driver.warnings,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        def missing(*args: Any) -> Any:
            raise AdmissionError(f"{name} is not there yet", "not_found")

        return missing
