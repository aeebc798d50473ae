"""The API's own description, completed: what each call may answer, and examples of what to send."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI

from framekeeper import errors
from framekeeper.errors import FramekeeperError
from framekeeper.gateway.body import BodyTooLarge, BodyTooSlow, UnsupportedMediaType, UploadsBusy
from framekeeper.gateway.errors import RangeNotSatisfiable

SCHEMAS = "#/components/schemas/{model}"
Errors = tuple[type[FramekeeperError], ...]

_ANY: Errors = (errors.InvalidRequest, errors.DatabaseUnavailable)
_KEY: Errors = (errors.MissingKey, errors.InvalidKey, errors.ScopeMissing)
_SUBMIT: Errors = (
    errors.ModelNotFound, errors.IdempotencyKeyReused, BodyTooSlow, BodyTooLarge, UnsupportedMediaType,
    errors.QueueFull, errors.RateLimited, errors.TooManyJobs, errors.NoEngine, errors.StorageFull,
    UploadsBusy,
)  # fmt: skip
_CONTENT: Errors = (
    errors.VideoNotFinished, errors.VideoExpired, errors.ContentLost, RangeNotSatisfiable,
)  # fmt: skip
#: What a call may answer beside the errors that any may; by method and path.
OWN: dict[tuple[str, str], Errors] = {
    ("post", "/v1/videos"): _SUBMIT,
    ("post", "/v1/videos/batch"): _SUBMIT,
    ("post", "/v1/videos/sync"): (
        *_SUBMIT, errors.EngineFailed, errors.FramesInvalid, errors.DeadlineExceeded, errors.StillBeingMade,
    ),
    ("get", "/v1/videos/{video_id}"): (errors.VideoNotFound,),
    ("delete", "/v1/videos/{video_id}"): (errors.VideoNotFound,),
    ("get", "/v1/videos/{video_id}/content"): (errors.VideoNotFound, *_CONTENT),
    ("get", "/v1/videos/{video_id}/events"): (errors.VideoNotFound,),
    ("post", "/v1/videos/{video_id}/cancel"): (errors.VideoNotFound, errors.VideoAlreadyFinished),
    ("get", "/v1/models/{model}"): (errors.ModelNotFound,),
}  # fmt: skip
_CAT: dict[str, Any] = {"prompt": "A cat walks through tall grass, film grain"}
#: A picture of one red pixel.
_PICTURE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAA"
    "AElFTkSuQmCC"
)
#: What may be sent.
SENT: dict[str, dict[str, Any]] = {
    "/v1/videos": {
        "short": {"value": _CAT},
        "all": {
            "value": {
                **_CAT,
                "size": "832x480",
                "seconds": "4",
                "negative_prompt": "text, watermark",
                "fps": 16,
                "num_inference_steps": 40,
                "guidance_scale": 4.0,
                "guidance_scale_2": 3.0,
                "flow_shift": 5.0,
                "seed": 7,
                "priority": "high",
                "deadline": 3600,
            }
        },
        "picture": {"value": {**_CAT, "input_reference": {"image_url": _PICTURE}}},
    },
    "/v1/videos/sync": {"short": {"value": _CAT}},
    "/v1/videos/batch": {"two": {"value": {"requests": [_CAT, {**_CAT, "prompt": "A dog in the rain"}]}}},
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key and body give the same job, for 24 hours; with another body, 409.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]{1,255}$"},
}
_RETRY = {"description": "Seconds until a repetition makes sense.", "schema": {"type": "integer"}}


def install(app: FastAPI) -> None:
    """Let `/openapi.json` and `/docs` show the completed description."""
    plain: Callable[[], dict[str, Any]] = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = completed(plain(), keys=app.state.settings.auth == "on")
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def completed(document: dict[str, Any], *, keys: bool) -> dict[str, Any]:
    """A copy with errors, examples and the schemas that routes brought along.

    Without `keys` no call asks for one.
    """
    document = copy.deepcopy(document)
    for path, method, operation in _operations(document):
        if not keys:
            operation.pop("security", None)
        own = OWN.get((method, path), ())
        needed = _KEY if "security" in operation else ()
        if needed and path in SENT:
            needed = (*needed, errors.PriorityNotAllowed)
        if path.startswith("/v1/"):
            _add_errors(operation, (*_ANY, *needed, *own))
        if path in SENT and "requestBody" in operation:
            operation.setdefault("parameters", []).append(IDEMPOTENCY_KEY)
            for kind in operation["requestBody"]["content"].values():
                kind["examples"] = SENT[path]
    _hoist(document, document["components"]["schemas"])
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _add_errors(operation: dict[str, Any], kinds: Errors) -> None:
    by_status: dict[int, list[type[FramekeeperError]]] = {}
    for kind in kinds:
        by_status.setdefault(int(kind.status), []).append(kind)
    for status, alike in sorted(by_status.items()):
        answer = operation["responses"].setdefault(str(status), {})
        answer["description"] = " ".join(_message(kind) for kind in alike)
        answer["content"] = {
            "application/json": {
                "schema": {"$ref": SCHEMAS.format(model="ErrorAnswer")},
                "examples": {kind.code: _example(kind) for kind in alike},
            }
        }
        if status in (429, 503, 507):
            answer["headers"] = {"Retry-After": _RETRY}


def _example(kind: type[FramekeeperError]) -> dict[str, Any]:
    error = {"message": _message(kind), "type": kind.type, "param": None, "code": kind.code}
    return {"summary": kind.advice, "value": {"error": error}}


def _message(kind: type[FramekeeperError]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").splitlines()[0]


def _hoist(part: Any, schemas: dict[str, Any]) -> None:
    """Move `$defs` that a route's own schema brought along to where its references point."""
    if isinstance(part, dict):
        for name, schema in part.pop("$defs", {}).items():
            schemas.setdefault(name, schema)
        for each in list(part.values()):
            _hoist(each, schemas)
    elif isinstance(part, list):
        for each in part:
            _hoist(each, schemas)
