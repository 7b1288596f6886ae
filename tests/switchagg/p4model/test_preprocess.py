"""The preprocessor: what reaches the parser, and where it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.p4model.errors import P4Error
from switchagg.p4model.preprocess import preprocess


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_keep_their_places_through_includes_and_comments(tmp_path: Path) -> None:
    write(tmp_path, "inner.p4", "\n\nconst bit<8> inner = 1;\n")
    path = write(
        tmp_path,
        "outer.p4",
        '/* two\nlines */ const bit<8> a = 1;\n#include "inner.p4"\nconst bit<8> b = 2;\n',
    )
    places = {}
    for line in preprocess(path).lines:
        for name in ("inner", "a =", "b ="):
            if name in line.text:
                where = line.location(line.text.index(name))
                places[name] = (Path(where.file).name, where.line, where.column)
    assert places == {"inner": ("inner.p4", 3, 14), "a =": ("outer.p4", 2, 23), "b =": ("outer.p4", 4, 14)}


def test_text_from_a_macro_is_placed_where_the_macro_is_used(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "m.p4",
        "#define WIDE(n) bit<(n)> very_long_name_of_a_field;\nstruct s { WIDE(3) bit<1> after; }\n",
    )
    line = next(each for each in preprocess(path).lines if "after" in each.text)
    assert (
        line.location(line.text.index("after")).column
        == "struct s { WIDE(3) bit<1> after; }".index("after") + 1
    )
    assert line.location(line.text.index("very")).line == 2
    assert line.location(line.text.index("very")).column <= len("struct s { WIDE(3)")


def test_defines_choose_between_branches(tmp_path: Path) -> None:
    path = write(tmp_path, "d.p4", "#if WORDS == 64\nyes\n#else\nno\n#endif\n")
    assert "".join(each.text for each in preprocess(path, defines=["WORDS=64"]).lines).split() == ["yes"]
    assert "".join(each.text for each in preprocess(path).lines).split() == ["no"]


def test_include_dirs_come_before_our_own(tmp_path: Path) -> None:
    write(tmp_path, "core.p4", "mine\n")
    path = write(tmp_path, "p.p4", "#include <core.p4>\n")
    assert any("mine" in each.text for each in preprocess(path, [tmp_path]).lines)
    assert any("packet_in" in each.text for each in preprocess(path).lines)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("\n#include <nothing.p4>\n", 2, "cannot find <nothing.p4>"),
        (
            "#include <core.p4>\n#include <psa.p4>\n",
            2,
            "<psa.p4>: the Portable Switch Architecture is not supported",
        ),
        ('\n\n#include "nothing.p4"\n', 3, 'cannot find "nothing.p4"'),
        ("#ifdef X\n#else\n#error choose X\n#endif\n", 3, "#error choose X"),
        ("#ifdef\n#endif\n", 1, "malformed"),
        ("a\n#frobnicate\n", 2, "unknown directive #frobnicate"),
    ],
)
def test_errors_have_their_place(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(P4Error, match=reason) as caught:
        preprocess(write(tmp_path, "bad.p4", text))
    assert caught.value.location.line == line
    assert Path(caught.value.location.file).name == "bad.p4"


def test_an_error_in_a_branch_not_taken_is_none(tmp_path: Path) -> None:
    assert preprocess(write(tmp_path, "p.p4", "#ifdef X\n#error no\n#endif\n")).lines is not None


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match=r"cannot read .*missing\.p4"):
        preprocess(tmp_path / "missing.p4")
    (tmp_path / "binary.p4").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(P4Error, match="not a text"):
        preprocess(tmp_path / "binary.p4")


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "loop.p4", '#include "loop.p4"\n')
    with pytest.raises(P4Error, match="without end"):
        preprocess(path)


def test_macros_that_double_end(tmp_path: Path) -> None:
    doubled = "".join(f"#define A{each + 1} A{each} + A{each}\n" for each in range(60))
    path = write(tmp_path, "many.p4", f"#define A0 1\n{doubled}\nconst int c = A60;\n")
    with pytest.raises(P4Error, match="macros make more than 131072 tokens") as error:
        preprocess(path)
    assert error.value.location.line


def test_nested_macros_are_refused_at_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, "deep.p4", f"#define F(x) (x)\n\nconst int c = {'F(' * 3000}1{')' * 3000};\n")
    with pytest.raises(P4Error, match="macros are nested too deeply") as error:
        preprocess(path)
    assert error.value.location.line == 3


def test_a_shift_in_a_condition_takes_no_memory(tmp_path: Path) -> None:
    path = write(tmp_path, "shift.p4", "#if 1 << 62\n#endif\n#if 1 << 99999999999\n#endif\n")
    with pytest.raises(P4Error, match="a shift by 99999999999 bits; accepted: up to 63") as error:
        preprocess(path)
    assert error.value.location.line == 3
