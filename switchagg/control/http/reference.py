"""The API for people to read, made from the OpenAPI document: `docs/api.md`, and the page at ``/docs``.

No I/O. Both are the same lines, as Markdown or as plain HTML without scripts.
"""

from __future__ import annotations

import html as escaping
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

Document = Mapping[str, Any]

_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1rem }
td, th { border: 1px solid #8886; padding: .2rem .6rem; text-align: left; vertical-align: top }
h3 { margin-top: 2rem }
"""


class _Heading(NamedTuple):
    level: int
    text: str


class _Table(NamedTuple):
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


_Part = _Heading | _Table | str


def markdown(document: Document) -> str:
    """Returns the page as Markdown."""
    lines: list[str] = []
    for part in _parts(document):
        match part:
            case _Heading(level, text):
                lines += [f"{'#' * level} {text}", ""]
            case _Table(heads, rows):
                lines += [_row(heads), _row(("---",) * len(heads)), *map(_row, rows), ""]
            case str():
                lines += [part, ""]
    return "\n".join(lines)


def html(document: Document) -> str:
    """Returns the page as HTML."""
    body: list[str] = []
    for part in _parts(document):
        match part:
            case _Heading(level, text):
                body.append(f"<h{level}>{_inline(text)}</h{level}>")
            case _Table(heads, rows):
                lines = "".join([_cells("th", heads), *(_cells("td", row) for row in rows)])
                body.append(f"<table>{lines}</table>")
            case str():
                body.append(f"<p>{_inline(part)}</p>")
    title = escaping.escape(document["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        + "\n".join(body)
        + "</html>\n"
    )


def _parts(document: Document) -> Iterator[_Part]:
    yield _Heading(1, "The controller's API")
    yield document["info"]["description"].replace("\n", " ")
    yield (
        "Requests and answers are JSON; bodies have at most 64 KB, `Content-Type: application/json` and a "
        "`Content-Length`. Where tenants are set up, every call but `/healthz` needs "
        "`Authorization: Bearer TOKEN`. The machine-readable form of this page is at `/openapi.json`. Every "
        "answer has an `X-Request-Id`, the caller's own or a new one, which stands in the log too."
    )
    by_tag: dict[str, list[tuple[str, str, Document]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    for tag, calls in by_tag.items():
        yield _Heading(2, tag.capitalize())
        for method, path, operation in calls:
            yield from _operation(method, path, operation)
    yield _Heading(2, "Objects")
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield _Heading(3, name)
        yield str(schema.get("description", "")).replace("\n", " ")
        if "enum" in schema:
            yield f"One of {_type(schema)}."
        if schema.get("properties"):
            required = set(schema.get("required", ()))
            rows = tuple(
                (f"`{field}`", _type(each), "yes" if field in required else _default(each), _meaning(each))
                for field, each in schema["properties"].items()
            )
            yield _Table(("field", "type", "required, or default", "meaning"), rows)


def _operation(method: str, path: str, operation: Document) -> Iterator[_Part]:
    yield _Heading(3, f"{operation['summary']}: `{method} {path}`")
    yield str(operation.get("description", "")).replace("\n", " ")
    if parameters := operation.get("parameters"):
        rows = tuple(
            (f"`{each['name']}`", each["in"], _type(each["schema"]), _default(each["schema"]), _meaning(each))
            for each in parameters
        )
        yield _Table(("parameter", "in", "type", "default", "meaning"), rows)
    if body := operation.get("requestBody"):
        yield f"Body: {_type(body['content']['application/json']['schema'])}."
    yield _Table(
        ("status", "answer"),
        tuple(
            (status, _answer(status, response)) for status, response in sorted(operation["responses"].items())
        ),
    )


def _answer(status: str, response: Document) -> str:
    if not status.startswith("2"):
        return f"error; code {response['description']}"
    ((media, content),) = response["content"].items()
    if media == "application/json":
        return _type(content["schema"])
    return f"`{media}`: {response['description']}"


def _type(schema: Document) -> str:
    """Returns a schema as words, with its limits."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']!r}`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"object of {_type(inner)}" if isinstance(inner, dict) and inner else "object"
    low = schema.get("minimum", schema.get("minLength"))
    if "exclusiveMinimum" in schema:
        low = f">{schema['exclusiveMinimum']}"
    high = schema.get("maximum", schema.get("maxLength"))
    unit = " characters" if kind == "string" else ""
    if low is None and high is None:
        return str(kind)
    return f"{kind}, {'' if low is None else low}..{'' if high is None else high}{unit}"


def _default(schema: Document) -> str:
    return f"`{schema['default']}`".replace("None", "null") if "default" in schema else ""


def _meaning(each: Document) -> str:
    found = each.get("description") or each.get("schema", {}).get("description")
    if found is None:
        choices = each.get("anyOf", each.get("schema", {}).get("anyOf", ()))
        found = next((choice["description"] for choice in choices if "description" in choice), "")
    return str(found)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _cells(kind: str, cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{kind}>{_inline(cell)}</{kind}>" for cell in cells) + "</tr>"


def _inline(text: str) -> str:
    marked = re.sub(r"`([^`]*)`", r"<code>\1</code>", escaping.escape(text))
    return re.sub(r"\[(\w+)\]\(#\w+\)", r"<i>\1</i>", marked)
