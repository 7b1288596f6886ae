"""Settings: refusals, and the trip through JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from switchagg.demo.settings import Settings, parse_embedding
from switchagg.errors import UsageError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": 0}, "--workers 0: a whole number from 1 to 32"),
        ({"workers": 33}, "--workers 33"),
        ({"steps": 0}, "--steps 0"),
        ({"bits": 12}, "--bits 12: lanes are 32, 16 or 8"),
        ({"packet_loss": 1.0}, "--loss 1: a share"),
        ({"packet_duplicate": -0.1}, "--duplicate -0.1"),
        ({"packet_reorder": float("nan")}, "--reorder nan"),
        ({"seed": -1}, "--seed -1"),
        ({"batch": 0}, "--batch 0"),
        ({"corpus_bytes": 99}, "--corpus-bytes 99"),
        ({"rows": 100}, "--embedding 100x64: at least 2048 rows"),
        ({"rows": 10_000_000}, "--embedding 10000000x64 has 640,000,000 parameters"),
        ({"learning_rate": 0.0}, "--learning-rate 0"),
        ({"rate": "0.1"}, "rate is '0.1'; accepted"),
    ],
)
def test_impossible_settings_name_the_option(fields: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(**fields)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_json_round_trip() -> None:
    settings = Settings(workers=3, packet_loss=0.25, rows=4096)
    assert Settings(**json.loads(json.dumps(asdict(settings)))) == settings


def test_parse_embedding() -> None:
    assert parse_embedding("30000X32") == (30_000, 32)
    for text in ("65536", "x64", "axb", "-1x4", "1x2x3"):
        with pytest.raises(UsageError, match="ROWSxCOLUMNS"):
            parse_embedding(text)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 400])
def test_checkpoints_end_with_the_last_step(steps: int) -> None:
    checkpoints = Settings(steps=steps).checkpoints()
    assert max(checkpoints) == steps
    assert min(checkpoints) >= 1
    assert len(checkpoints) == min(4, steps)
