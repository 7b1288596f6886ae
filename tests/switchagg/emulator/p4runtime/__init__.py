"""Somebody else's client, over real gRPC on loopback."""

import pytest

pytest.importorskip("p4runtime_sh", reason='needs the extra: pip install "switchagg[p4runtime]"')
