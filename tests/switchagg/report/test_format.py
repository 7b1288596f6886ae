"""Figures as listings and reports show them."""

from __future__ import annotations

from typing import Any

import pytest

from switchagg.report.format import figure, significant, size, throughput


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (True, "yes"), (1234567, "1,234,567"), (0.0, "0"), (0.25, "0.25"), (1e-9, "1.00e-09"),
        (123456.7, "123,457"), (2.5e7, "2.50e+07"), (float("inf"), "-"), ("word", "word"), (-1.5, "-1.5"),
    ],
)  # fmt: skip
def test_figures(value: Any, shown: str) -> None:
    assert figure(value) == shown


def test_bytes_have_the_unit_that_fits() -> None:
    counts = (0, 999, 1500, 17_600_000, 999_600)
    assert [size(count) for count in counts] == ["0 B", "999 B", "1.5 kB", "17.6 MB", "1 MB"]
    assert [size(None), throughput(None), throughput(0.0015)] == ["-", "-", "1.5 MB/s"]


def test_significant_digits_without_exponents() -> None:
    values = (0, 1.5, 12.345, 99.96, 1234.5)
    assert [significant(value) for value in values] == ["0", "1.5", "12.3", "100", "1234"]
    assert significant(12345.6, 4, thousands=",") == "12,346"
