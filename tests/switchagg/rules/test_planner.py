"""Sizes of packets, and the policy's code on the wire."""

from __future__ import annotations

import pytest

from switchagg.errors import UsageError
from switchagg.rules.planner import (
    DEFAULT_BLOCK,
    DEFAULT_SLOTS,
    DEFAULT_WORDS,
    SkipPolicy,
    elements_per_packet,
)
from switchagg.wire.header import max_words


def test_elements_per_packet() -> None:
    assert [elements_per_packet(352, bits) for bits in (64, 32, 16, 8)] == [117, 352, 704, 1408]
    assert elements_per_packet(16, 64) == 5
    with pytest.raises(UsageError, match="bits is 12"):
        elements_per_packet(352, 12)
    with pytest.raises(UsageError, match="words is 15"):
        elements_per_packet(15, 32)


def test_defaults_fit_an_ethernet_frame() -> None:
    assert max_words(1500) >= DEFAULT_WORDS
    assert DEFAULT_SLOTS & (DEFAULT_SLOTS - 1) == 0
    assert SkipPolicy() == SkipPolicy(DEFAULT_BLOCK, dense=False)


def test_policy_word() -> None:
    lanes = [SkipPolicy(100, bits=bits) for bits in (8, 16, 32, 64)]
    for policy in (SkipPolicy(), SkipPolicy(1), SkipPolicy(65536, dense=True), *lanes):
        assert SkipPolicy.from_word(policy.word()) == policy
    assert SkipPolicy(64, dense=True).word() == 0xC0000040
    assert SkipPolicy(64, bits=16).word() == 0x80200040
    assert SkipPolicy.from_word(0) is None
    assert SkipPolicy.from_word(64) is None
    for block in (0, 65537):
        with pytest.raises(UsageError, match=f"block is {block}; accepted: 1 to 65536"):
            SkipPolicy(block)
