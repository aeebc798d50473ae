"""The API's description as one page of HTML, made from `/openapi.json`: no script, no other origin."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from framekeeper.jobs.fields import plain

Document = dict[str, Any]
REFERENCE = "#/components/schemas/"


def page(document: Document, base: str) -> str:
    """The whole page. `base` is where the service is reached, for the lines to paste into a shell."""
    info = document["info"]
    calls = list(_calls(document))
    schemas = document.get("components", {}).get("schemas", {})
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(info['title'])}: API</title>",
            '<link rel="icon" href="page/icon.svg" type="image/svg+xml">',
            '<link rel="stylesheet" href="page/page.css"><link rel="stylesheet" href="page/reference.css">',
            '</head><body class="reference"><a class="skip" href="#calls">To the calls</a><main>',
            f"<header><h1>{escape(info['title'])} {escape(info['version'])}: the API</h1>",
            f"<p>{_words(info.get('description', ''))} For programs: <a href=openapi.json>openapi.json</a>. "
            'The page to make videos with: <a href="./">here</a>.</p></header>',
            f'<nav aria-label="Calls"><ul>{"".join(_entry(*call) for call in calls)}</ul></nav>',
            '<section id="calls"><h2 class="unseen">Calls</h2>',
            *(_call(*call, base) for call in calls),
            '</section><section aria-labelledby="schemas"><h2 id="schemas">Schemas</h2>',
            *(_schema(name, schema) for name, schema in sorted(schemas.items())),
            "</section></main></body></html>",
        ]
    )


def _calls(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _anchor(method: str, path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{method}-{path}".lower()).strip("-")


def _entry(method: str, path: str, _operation: Document) -> str:
    return f'<li><a href="#{_anchor(method, path)}"><b>{method}</b> <code>{escape(path)}</code></a></li>'


def _call(method: str, path: str, operation: Document, base: str) -> str:
    parts = [
        f'<article id="{_anchor(method, path)}"><h3><b>{method}</b> <code>{escape(path)}</code></h3>',
        f"<p>{_words(operation.get('description') or operation.get('summary', ''))}</p>",
    ]
    if "security" in operation:
        parts.append("<p class=soft>Needs <code>Authorization: Bearer fk_…</code>.</p>")
    parameters = operation.get("parameters", [])
    if parameters:
        rows = (
            (each["name"], f"{_type(each['schema'])}, in the {each['in']}", _told(each, each["required"]))
            for each in parameters
        )
        parts.append(_table("Parameters", ("name", "type", "meaning"), rows))
    parts += _body(operation.get("requestBody"), f"{base}{path}")
    parts.append(_answers(operation["responses"]))
    return "\n".join([*parts, "</article>"])


def _body(body: Document | None, url: str) -> Iterator[str]:
    if body is None:
        return
    kinds = body["content"]
    schema = next(iter(kinds.values()))["schema"]
    yield f"<h4>Body</h4><p>{' or '.join(f'<code>{escape(kind)}</code>' for kind in kinds)}</p>"
    yield _fields(schema)
    for name, example in next(iter(kinds.values())).get("examples", {}).items():
        sent = shlex.quote(json.dumps(example["value"], ensure_ascii=False))
        line = f"curl {url} -H 'Content-Type: application/json' -d {sent}"
        yield f"<p class=soft>Example: {escape(name)}</p><pre><code>{escape(line)}</code></pre>"


def _answers(responses: Document) -> str:
    rows = []
    for status, answer in responses.items():
        if status == "default":
            continue
        codes = [code for kind in answer.get("content", {}).values() for code in kind.get("examples", {})]
        content = ", ".join(
            f"{_code(kind)} {_type(each['schema'])}" for kind, each in answer.get("content", {}).items()
        )
        told = escape(answer.get("description", ""))
        if codes:
            told = f"{' '.join(_code(code) for code in codes)}<br>{told}"
        rows.append((status, content, told))
    return _table("Answers", ("status", "content", "meaning"), rows)


def _schema(name: str, schema: Document) -> str:
    told = f"<p>{_words(schema['description'])}</p>" if "description" in schema else ""
    return f'<article id="{escape(name)}"><h3>{escape(name)}</h3>{told}{_fields(schema)}</article>'


def _fields(schema: Document) -> str:
    if "properties" not in schema:
        return f"<p>{_type(schema)}</p>"
    needed = schema.get("required", [])
    rows = ((name, _type(each), _told(each, name in needed)) for name, each in schema["properties"].items())
    return _table(None, ("field", "type", "meaning"), rows)


def _table(caption: str | None, heads: tuple[str, ...], rows: Iterable[tuple[str, str, str]]) -> str:
    title = f"<caption>{caption}</caption>" if caption else ""
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    body = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{kind}</td><td>{told}</td></tr>'
        for name, kind, told in rows
    )
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _told(each: Document, required: bool) -> str:
    """A field's or a parameter's description, and whether it has to be there."""
    schema = each.get("schema", each)
    parts = [_words(each.get("description", ""))]
    if required:
        parts.append("Required.")
    if schema.get("default") is not None:
        parts.append(f"Default: {_code(json.dumps(schema['default']))}.")
    return " ".join(part for part in parts if part)


def _type(schema: Document) -> str:
    """One schema in a few words, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "enum" in schema:
        return " or ".join(_code(json.dumps(each)) for each in schema["enum"])
    if "const" in schema:
        return _code(json.dumps(schema["const"]))
    kind = escape(str(schema.get("type", "any")))
    if kind == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    bounds = [
        f"{words} {plain(schema[key])}"
        for key, words in _BOUNDS.items()
        if isinstance(schema.get(key), int | float)
    ]
    return ", ".join([kind, *bounds])


_BOUNDS = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below",
    "minLength": "length at least", "maxLength": "length at most", "minItems": "items at least",
    "maxItems": "items at most",
}  # fmt: skip


def _words(text: str) -> str:
    """A docstring's words: what stands between backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split())))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
