"""`/docs`: the API's description as a page."""

from __future__ import annotations

import re

import httpx

from framekeeper.gateway import reference

ELSEWHERE = re.compile(r"""(?:src|href|action)=["']?(?:https?:)?//|url\(""")


def test_every_call_field_and_error_of_the_description_is_on_the_page(shared_http: httpx.Client) -> None:
    document = shared_http.get("/openapi.json").json()
    answer = shared_http.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"<h3><b>{method.upper()}</b> <code>{path}</code></h3>" in answer.text
    for name, schema in document["components"]["schemas"].items():
        assert f'<article id="{name}"><h3>{name}</h3>' in answer.text
        for field in schema.get("properties", {}):
            assert f"<code>{field}</code>" in answer.text
    assert "<code>queue_full</code>" in answer.text
    base = str(shared_http.base_url).rstrip("/")
    assert f"curl {base}/v1/videos -H" in answer.text


def test_it_runs_no_script_and_names_no_other_origin(shared_http: httpx.Client) -> None:
    for path in ("/docs", "/page/reference.css"):
        answer = shared_http.get(path)
        assert ELSEWHERE.findall(answer.text) == []
        assert "<script" not in answer.text
        assert "unsafe-inline" not in answer.headers["content-security-policy"]
    assert shared_http.get("/redoc").status_code == 404


def test_what_a_description_says_is_text_and_never_markup() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    schema = {"properties": {hostile: {"type": "string", "description": hostile, "default": hostile}}}
    document = {
        "info": {"title": hostile, "version": "1", "description": hostile},
        "paths": {
            f"/{hostile}": {
                "post": {
                    "description": hostile,
                    "parameters": [{"name": hostile, "in": "query", "required": True, "schema": {}}],
                    "requestBody": {
                        "content": {
                            "application/json": {"schema": schema, "examples": {hostile: {"value": hostile}}}
                        }
                    },
                    "responses": {"200": {"description": hostile, "content": {hostile: {"schema": schema}}}},
                }
            }
        },
        "components": {"schemas": {"Any": schema}},
    }  # fmt: skip
    assert "<img" not in reference.page(document, f"http://{hostile}")
