"""The API page: as the code is, and as a browser may show it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from switchagg.control import answers
from switchagg.control.http.app import openapi_document
from switchagg.control.http.errors import STATUS
from tests.switchagg.control.served_controller import serving

ROOT = Path(__file__).parents[4]


def test_the_page_in_docs_is_as_the_code_is() -> None:
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "scripts" / "api_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert (ROOT / "docs" / "api.md").read_text() == script.page(), "run scripts/api_page.py"


def test_every_call_says_what_it_does_and_how_it_fails() -> None:
    document = openapi_document()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], path
            statuses = set(operation["responses"])
            assert {"400", "401", "403"} <= statuses, (method, path)
            assert {"411", "413"} <= statuses or "requestBody" not in operation, (method, path)
            assert "422" not in statuses
            codes = " ".join(
                each["description"] for status, each in operation["responses"].items() if status > "4"
            )
            assert set(re.findall(r"`(\w+)`", codes)) <= set(STATUS)
    names = [operation["operationId"] for each in document["paths"].values() for operation in each.values()]
    assert len(names) == len(set(names))
    text = str(document)
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= set(document["components"]["schemas"])


def test_answers_without_a_source_file_have_no_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("answers_without_a_file")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(Path(answers.__file__).read_text(), module.__dict__)
    hints = get_type_hints(answers.Endpoint, include_extras=True)
    assert get_type_hints(module.Endpoint, include_extras=True) == get_type_hints(answers.Endpoint) != hints


def test_it_is_served_without_anything_from_elsewhere() -> None:
    with serving() as place:
        status, page = place.text("/docs")
        assert status == 200
        assert "<h3>Join: <code>POST /v1/jobs/{name}/members</code></h3>" in page
        assert re.findall(r"<script|src=|href=", page) == []
        assert place.call("GET", "/openapi.json")[1] == openapi_document()
        status, page = place.text("/")
        assert (status, page.lstrip().lower()[:15]) == (200, "<!doctype html>")
        for path in ("/page/none", "/page/..%2Fapp.py", "/page/%2e%2e/app.py"):
            status, answer = place.call("GET", path)
            assert (status, answer["error"]["code"]) == (404, "not_found")
