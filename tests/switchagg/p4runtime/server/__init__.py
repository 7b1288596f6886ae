"""Somebody else's client, over real gRPC on loopback."""

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')
