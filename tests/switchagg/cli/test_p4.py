"""`switchagg p4 check` and `switchagg p4 info`, as a person runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from switchagg.cli.main import main
from tests.switchagg.p4model.sources import TNA, V1MODEL

COUNT = """
    Register<bit<32>, bit<16>>(16) cells;
    RegisterAction<bit<32>, bit<16>, bit<32>>(cells) count = {
        void apply(inout bit<32> value) { value = value + 1; }
    };
    action a() { count.execute(hdr.h.slot); }
    apply { a(); EXTRA }
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.p4"
    path.write_text(
        V1MODEL.format(top="", parser="transition accept;", ingress="apply { }"), encoding="utf-8"
    )
    return path


def write_tna(folder: Path, extra: str) -> Path:
    path = folder / "t.p4"
    path.write_text(TNA.format(ingress=COUNT.replace("EXTRA", extra)), encoding="utf-8")
    return path


def test_a_program_that_is_right(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["p4", "check", str(program)]) == 0
    assert "no errors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("architecture", "ingress", "message"),
    [
        (
            TNA,
            COUNT.replace("count.execute(hdr.h.slot)", "count.execute_log()").replace("EXTRA", ""),
            "RegisterAction.execute_log in tna is not supported",
        ),
        (TNA, "MathUnit<bit<32>>(MathOp_t.SQR, 1) m; apply { }", "the extern MathUnit in tna"),
        (V1MODEL, "apply { " + "if (hdr.h.a == 1) { " * 110 + "}" * 110 + " }", "is nested too deeply"),
    ],
)
def test_what_a_run_refuses_is_refused_with_its_place(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    architecture: str,
    ingress: str,
    message: str,
) -> None:
    path = tmp_path / "p.p4"
    path.write_text(
        architecture.format(top="", parser="transition accept;", ingress=ingress), encoding="utf-8"
    )
    for command in (["check"], ["run", "--hex", "00" * 12]):
        assert main(["p4", *command, str(path)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert re.search(r"p\.p4:\d+:\d+: error: ", error)


def test_warnings_leave_the_exit_status_alone(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top = "void f(out bit<8> a, out bit<8> b) { a = 1; b = 2; }"
    program.write_text(
        V1MODEL.format(top=top, parser="transition accept;", ingress="apply { f(meta.x, meta.x); }"),
        encoding="utf-8",
    )
    assert main(["p4", "check", str(program)]) == 0
    error = capsys.readouterr().err
    assert "warning: `a` and `b` write to the same place" in error
    assert "no errors" in error


def test_a_program_that_is_wrong(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text(
        program.read_text(encoding="utf-8").replace("emit(hdr)", "emit(hrd)"), encoding="utf-8"
    )
    assert main(["p4", "check", str(program)]) == 2
    error = capsys.readouterr().err
    assert "`hrd` is not declared" in error
    assert "packet.emit(hrd)" in error
    assert "Traceback" not in error


def test_macros_and_folders_reach_the_preprocessor(program: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "extra.p4").write_text("#if N != 3\n#error N\n#endif\n", encoding="utf-8")
    program.write_text("#include <extra.p4>\n" + program.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["p4", "check", str(program)]) == 2
    assert main(["p4", "check", "-I", str(tmp_path / "more"), "-D", "N=3", str(program)]) == 0


def test_the_tofino_check_decides_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["p4", "check", "--target", "tofino", str(write_tna(tmp_path, ""))]) == 0
    assert "stages: ingress 1" in capsys.readouterr().out
    assert main(["p4", "check", "--target", "tofino", "--json", str(write_tna(tmp_path, "a();"))]) == 1
    assert "accessed twice" in json.loads(capsys.readouterr().out)["findings"][0]["reason"]


def test_an_estimate_past_the_chip_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    ours = Path(__file__).parents[3] / "p4" / "switchagg_tna.p4"
    assert main(["p4", "check", "--target", "tofino", str(ours)]) == 0
    assert "let the compiler try" in capsys.readouterr().out


def test_info_as_text_and_json(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["p4", "info", str(program)]) == 0
    assert capsys.readouterr().out == 'pkg_info {\n  arch: "v1model"\n}\n'
    target = tmp_path / "info.json"
    assert main(["p4", "info", "--json", "-o", str(target), str(program)]) == 0
    assert json.loads(target.read_text(encoding="utf-8")) == {"pkgInfo": {"arch": "v1model"}}
