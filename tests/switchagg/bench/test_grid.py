import pytest

from switchagg.bench.grid import (
    DEFAULT,
    EXACT,
    Cell,
    Overlap,
    Settings,
    format_size,
    name_of_bits,
    parse_bits,
    parse_list,
    parse_size,
)
from switchagg.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4K", 4096), ("64M", 64 << 20), ("1.5K", 1536), ("2GiB", 2 << 30), ("64m", 64 << 20)],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4", "4T", "0.3", "four"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size(text)


@pytest.mark.parametrize("size", [1, 4096, 1536, 64 << 20, 4097, 5 << 30])
def test_format_size_can_be_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_lists_keep_order_and_drop_duplicates() -> None:
    assert parse_list("8, 2,8", "workers", int) == (8, 2)
    with pytest.raises(UsageError, match="workers: cannot read 'x'"):
        parse_list("2,x", "workers", int)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"sizes": (0,)}, "size is 0"),
        ({"sizes": (6,)}, "size is 6; accepted: multiples of 4 bytes"),
        ({"workers": (1,)}, "workers is 1; accepted: 2 to 32"),
        ({"workers": (4, 33)}, "workers is 33; accepted: 2 to 32"),
        ({"densities": (0.0,)}, "density is 0.0"),
        ({"densities": (1.5,)}, "density is 1.5"),
        ({"densities": (float("nan"),)}, "density is nan"),
        ({"losses": (1.0,)}, "loss is 1.0"),
        ({"bits": (12,)}, "bits"),
        ({"bits": (64,)}, "bits for float32 is 64; accepted: default, 32, 16, 8, exact"),
        ({"dtypes": ("complex64",)}, "dtype is complex64"),
        ({"block_size": 0}, "block-size is 0"),
        ({"words": 8}, "words is 8"),
        ({"slots": 100}, "slots is 100"),
        ({"repeat": 0}, "repeat is 0"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
    ],
)
def test_bad_settings_are_refused_by_name_and_value(bad: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(**bad)  # type: ignore[arg-type]


def test_the_grid_is_the_product_with_dense_cells_once() -> None:
    settings = Settings(
        workers=(2, 4),
        sizes=(4096,),
        densities=(1.0, 0.1),
        overlaps=(Overlap.ALL, Overlap.NONE),
        block_size=32,
    )
    cells = list(settings.cells())
    assert cells == [
        Cell(workers, 4096, "float32", density, overlap, 32)
        for workers in (2, 4)
        for density, overlap in ((1.0, Overlap.ALL), (0.1, Overlap.ALL), (0.1, Overlap.NONE))
    ]


def test_a_dtype_takes_only_its_own_lanes() -> None:
    settings = Settings(dtypes=("float32", "int32"), bits=(32, 8))
    assert settings.lanes("float32") == (32, 8)
    assert settings.lanes("int32") == (32,)
    assert Settings(dtypes=("float64",)).lanes("float64") == (DEFAULT, 64, 32, 16, 8)
    assert Settings(bits=(EXACT, 32)).lanes("float32") == (EXACT, 32)
    assert [name_of_bits(parse_bits(text)) for text in ("default", "exact", "8")] == ["default", "exact", "8"]


def test_small_tensors_are_timed_several_to_a_sample() -> None:
    assert Cell(4, 4096, "float32", 1.0, Overlap.ALL, 64).calls > 1
    assert Cell(4, 64 << 20, "float32", 1.0, Overlap.ALL, 64).calls == 1
