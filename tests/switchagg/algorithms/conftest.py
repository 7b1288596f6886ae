from __future__ import annotations

from tests.worker_lib.conftest import host

__all__ = ["host"]
