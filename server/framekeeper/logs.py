"""Logs of all programs: one line an event on standard error, human in a terminal and JSON otherwise."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from framekeeper.settings import Settings

#: Keys whose values are a person's words.
PRIVATE_KEYS = frozenset({"prompt", "negative_prompt"})
#: The same words where other people's code put them into text: pydantic's and PostgreSQL's messages, and
#: records printed whole.
PRIVATE_TEXT = (
    re.compile(
        r"(?P<keep>\binput_value=)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|.*?(?=, input_type=))", re.S
    ),
    re.compile(
        r"(?P<keep>['\"]?\b(?:negative_)?prompt['\"]?\s*[=:]\s*)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")",
        re.S,
    ),
    re.compile(r"(?P<keep>Failing row contains )\(.*\)", re.S),
    re.compile(r"(?P<keep>portal parameter \$\d+ = )'(?:[^']|'')*'", re.S),
)
REDACTED = "[not logged]"

#: Other people's loggers, and the least level at which they say something worth a line.
LIBRARIES = {
    "uvicorn": logging.INFO,
    "uvicorn.error": logging.INFO,
    "uvicorn.access": logging.WARNING,  # the gateway logs its requests itself, with their ids
    "gunicorn.error": logging.INFO,
    "gunicorn.access": logging.WARNING,
    "procrastinate": logging.WARNING,
    "psycopg": logging.WARNING,
    "psycopg.pool": logging.WARNING,
    "alembic": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "asyncio": logging.WARNING,
    "multipart": logging.WARNING,
    "python_multipart": logging.WARNING,
}


def configure(settings: Settings, program: str, stream: TextIO | None = None) -> None:
    """Route structlog and the standard library's loggers to one handler. May be called again."""
    stream = stream or sys.stderr
    human = settings.log_format == "human" or (settings.log_format == "auto" and stream.isatty())
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared = _shared_processors(program, hide_prompts=not settings.log_prompts)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=_last_processors(
                human, colours=stream.isatty(), hide_prompts=not settings.log_prompts
            ),
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    for name, least in LIBRARIES.items():
        library = logging.getLogger(name)
        library.handlers = []  # gunicorn and uvicorn bring their own
        library.propagate = True
        library.setLevel(max(level, least))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers made before this call, at import, must follow it
    )


def redact(value: Any) -> Any:
    """A copy of `value` without anybody's prompt: by key in mappings, by pattern in text."""
    if isinstance(value, MutableMapping | dict):
        return {
            key: REDACTED if str(key) in PRIVATE_KEYS and item is not None else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    if isinstance(value, str):
        for pattern in PRIVATE_TEXT:
            value = pattern.sub(rf"\g<keep>{REDACTED}", value)
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    # Anything else is printed by its repr, and a record's repr holds its fields.
    text = repr(value)
    clean = redact(text)
    return value if clean == text else clean


def _shared_processors(program: str, *, hide_prompts: bool) -> list[Processor]:
    def name_program(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["program"] = program
        event.pop("color_message", None)  # uvicorn's, the same text once more
        return event

    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        name_program,
    ]
    if hide_prompts:
        processors.append(_redact_event)
    return processors


def _last_processors(human: bool, *, colours: bool, hide_prompts: bool) -> list[Processor]:
    processors: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,  # without local variables, which hold requests
    ]
    if hide_prompts:
        processors.append(_redact_event)  # once more: the traceback is text only now
    if human:
        return [*processors, structlog.dev.ConsoleRenderer(colors=colours)]
    return [*processors, structlog.processors.JSONRenderer(default=str)]


def _redact_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    # exc_info, _record and _from_structlog are structlog's own and not text yet.
    return {
        key: value
        if key.startswith("_") or key == "exc_info"
        else REDACTED
        if key in PRIVATE_KEYS and value is not None
        else redact(value)
        for key, value in event.items()
    }
