import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pydantic
import pytest
import structlog

from framekeeper import logs
from framekeeper.settings import Settings

SECRET = "a secret cat"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, _ = handlers, root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines_of(act: Callable[[], object], **settings: Any) -> list[dict[str, Any]]:
    """What `act` logs, as JSON records."""
    stream = io.StringIO()
    logs.configure(Settings(**({"log_format": "json"} | settings)), "tester", stream)
    act()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_with_program_time_level_and_fields() -> None:
    [line] = lines_of(lambda: structlog.get_logger("here").info("engine ready", seconds=1.5))
    assert line["event"] == "engine ready"
    assert (line["program"], line["level"], line["logger"], line["seconds"]) == (
        "tester",
        "info",
        "here",
        1.5,
    )
    assert line["timestamp"].endswith("Z")


def test_the_standard_librarys_loggers_come_the_same_way() -> None:
    def act() -> None:
        logging.getLogger("uvicorn.error").info("Started %s", "it")
        logging.getLogger("uvicorn.access").info("GET /")
        logging.getLogger("procrastinate.worker").info("Starting job")
        logging.getLogger("procrastinate.worker").warning("stalled")

    assert [(line["logger"], line["event"]) for line in lines_of(act)] == [
        ("uvicorn.error", "Started it"),
        ("procrastinate.worker", "stalled"),
    ]


def test_configuring_twice_logs_once_even_after_a_library_brought_its_own_handler() -> None:
    def act() -> None:
        library = logging.getLogger("gunicorn.error")
        library.addHandler(logging.StreamHandler(io.StringIO()))
        library.propagate = False

    stream = io.StringIO()
    for _ in range(2):
        logs.configure(Settings(log_format="json"), "tester", stream)
        act()
    logs.configure(Settings(log_format="json"), "tester", stream)
    logging.getLogger("gunicorn.error").info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_less_than_the_level_is_dropped() -> None:
    log = structlog.get_logger("here")
    assert lines_of(lambda: log.info("quiet"), log_level="warning") == []
    assert len(lines_of(lambda: log.debug("loud"), log_level="debug")) == 1


def test_a_logger_made_before_configuring_follows_it() -> None:
    early = structlog.get_logger("early")
    assert lines_of(lambda: early.info("x", prompt=SECRET))[0]["prompt"] == logs.REDACTED


class _Request(pydantic.BaseModel):
    prompt: int


def _validation_error() -> None:
    try:
        _Request(prompt=SECRET)  # type: ignore[arg-type]
    except pydantic.ValidationError:
        structlog.get_logger("x").exception("request failed")


def _key() -> None:
    structlog.get_logger("x").info("x", prompt=SECRET, negative_prompt=SECRET)


def _nested() -> None:
    structlog.get_logger("x").info("x", request={"deep": [{"prompt": SECRET}]})


def _record() -> None:
    structlog.get_logger("x").info("x", request=_Request.model_construct(prompt=SECRET))


def _foreign_text() -> None:
    logging.getLogger("procrastinate").warning("job %s", {"prompt": SECRET, "id": 3})


def _foreign_extra() -> None:
    logging.getLogger("procrastinate").warning("job", extra={"prompt": SECRET})


def _postgres() -> None:
    structlog.get_logger("x").error(
        "x", error=f"null value\nDETAIL:  Failing row contains (1, {SECRET}, null)."
    )


def _json_text() -> None:
    structlog.get_logger("x").info(json.dumps({"prompt": f'{SECRET} said "hello" and'}))


SAID = (_validation_error, _key, _nested, _record, _foreign_text, _foreign_extra, _postgres, _json_text)


@pytest.mark.parametrize("act", SAID)
@pytest.mark.parametrize("format_", ["json", "human"])
def test_no_prompt_is_logged(act: Callable[[], None], format_: str) -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_format=format_), "tester", stream)
    act()
    assert stream.getvalue()
    assert SECRET not in stream.getvalue()
    assert "hello" not in stream.getvalue()


@pytest.mark.parametrize("act", SAID)
def test_prompts_are_logged_where_that_was_asked_for(act: Callable[[], None]) -> None:
    assert SECRET in json.dumps(lines_of(act, log_prompts=True))


def test_what_is_not_a_prompt_stays() -> None:
    [line] = lines_of(
        lambda: structlog.get_logger("x").info("prompt refused", width=64, sizes=[1, 2.5], none=None)
    )
    assert (line["event"], line["width"], line["sizes"], line["none"]) == (
        "prompt refused",
        64,
        [1, 2.5],
        None,
    )


def test_a_traceback_is_part_of_the_one_line() -> None:
    def act() -> None:
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            logging.getLogger("x").exception("failed")

    [line] = lines_of(act)
    assert "RuntimeError: broken" in line["exception"]


def test_warnings_are_logged() -> None:
    [line] = lines_of(lambda: warnings.warn("old", UserWarning, stacklevel=1))
    assert "old" in line["event"]


def test_automatic_is_json_where_there_is_no_terminal() -> None:
    [line] = lines_of(lambda: structlog.get_logger("x").info("y"), log_format="auto")
    assert line["event"] == "y"
