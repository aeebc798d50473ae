"""Every answer that is no success has OpenAI's shape, whoever refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from framekeeper.database.pool import Database
from framekeeper.errors import EngineFailed
from framekeeper.gateway.app import create_app
from framekeeper.jobs import settle
from framekeeper.settings import Settings, SettingsError
from gateway.conftest import register
from gateway.serving import served

UNKNOWN = "video_" + "0" * 32


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    return dict(error)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/videos/{id}"), ("GET", "/v1/videos/{id}/content"), ("DELETE", "/v1/videos/{id}"),
        ("POST", "/v1/videos/{id}/cancel"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "video_id", [UNKNOWN, "1", "video_%00", "%ff", "x" * 2000, "..%5c..", UNKNOWN.upper()]
)
def test_unknown_id_is_404_everywhere(
    shared_http: httpx.Client, method: str, path: str, video_id: str
) -> None:
    answer = shared_http.request(method, path.format(id=video_id))
    assert answer.status_code == 404
    error = error_of(answer)
    assert (error["code"], error["param"]) == ("video_not_found", "video_id")
    assert len(error["message"]) < 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/videos/", 404, "not_found"),
        ("GET", "/v1/videos/a/b", 404, "not_found"),
        ("GET", "/../etc/passwd", 404, "not_found"),
        ("PUT", "/v1/videos", 405, "method_not_allowed"),
        ("PATCH", f"/v1/videos/{UNKNOWN}", 405, "method_not_allowed"),
        ("BREW", "/v1/videos", 405, "method_not_allowed"),
        ("POST", "/health/live", 405, "method_not_allowed"),
    ],
)
def test_refusals_of_the_framework_have_the_same_shape(
    shared_http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = shared_http.request(method, path)
    assert answer.status_code == status
    assert error_of(answer)["code"] == code
    assert ("allow" in answer.headers) == (status == 405)
    if status == 405:
        assert f": use {answer.headers['allow'].replace(', ', ' or ')}." in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"), ("limit=101", "limit"), ("limit=many", "limit"), ("limit=", "limit"),
        ("order=up", "order"), ("after=1", "after"), (f"after={UNKNOWN}", "after"), ("after=%00", "after"),
    ],
)  # fmt: skip
def test_wrong_query_names_its_parameter(shared_http: httpx.Client, query: str, param: str) -> None:
    answer = shared_http.get(f"/v1/videos?{query}")
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}=")


@pytest.mark.usefixtures("ready_engine")
def test_refused_fields_are_all_named_and_queue_nothing(http: httpx.Client) -> None:
    answer = http.post("/v1/videos", json={"prompt": "a cat", "num_frames": 10, "seed": -1})
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == "num_frames"
    assert "seed=-1" in error["message"]
    assert http.get("/v1/videos").json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


def test_before_any_engine_registered_a_job_is_refused_for_now(http: httpx.Client) -> None:
    answer = http.post("/v1/videos", json={"prompt": "a cat"})
    assert answer.status_code == 503
    assert error_of(answer)["code"] == "no_engine"
    assert int(answer.headers["retry-after"]) > 0


async def test_engine_that_is_not_ready_yet_takes_jobs_into_the_queue(
    web: httpx.AsyncClient, database: Database
) -> None:
    await register(database)
    assert (await web.post("/v1/videos", json={"prompt": "a cat"})).json()["status"] == "queued"


def test_unknown_model_names_what_is_served(shared_http: httpx.Client) -> None:
    for answer in (
        shared_http.post("/v1/videos", json={"prompt": "a cat", "model": "sora-2"}),
        shared_http.get("/v1/models/sora-2"),
    ):
        assert answer.status_code == 404
        assert error_of(answer)["code"] == "model_not_found"
        assert "tiny" in answer.text


@pytest.mark.usefixtures("ready_engine")
def test_full_disk_refuses_new_jobs_and_keeps_the_rest_working(settings: Settings) -> None:
    full = settings.model_copy(update={"min_free_bytes": 1 << 60})
    with served(full) as url, httpx.Client(base_url=url) as http:
        answer = http.post("/v1/videos", json={"prompt": "a cat"})
        assert answer.status_code == 507
        assert error_of(answer)["code"] == "storage_full"
        assert http.post("/v1/videos", json={"prompt": " "}).status_code == 400
        assert http.get("/v1/videos").json()["data"] == []


@pytest.mark.usefixtures("ready_engine")
async def test_final_video_cannot_be_cancelled(web: httpx.AsyncClient, database: Database) -> None:
    video_id = (await web.post("/v1/videos", json={"prompt": "a cat"})).json()["id"]
    held = await settle.claim(database, video_id, engine_id="host/0", run_id="run")
    assert held is not None
    assert (await web.post(f"/v1/videos/{video_id}/cancel")).json()["cancel_requested"] is True
    await settle.fail(database, held, EngineFailed())
    answer = await web.post(f"/v1/videos/{video_id}/cancel")
    assert answer.status_code == 409
    assert error_of(answer)["code"] == "video_already_finished"
    # The official client repeats a 409 by itself unless it is told not to.
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.usefixtures("ready_engine")
def test_queued_video_is_cancelled_once_and_stays_so(http: httpx.Client) -> None:
    video_id = http.post("/v1/videos", json={"prompt": "a cat"}).json()["id"]
    for _ in range(2):
        answer = http.post(f"/v1/videos/{video_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")


async def test_unforeseen_failure_shows_nothing_of_itself(web: httpx.AsyncClient, database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("ALTER TABLE videos ALTER request TYPE text")
        await connection.execute(
            "INSERT INTO videos (id, model, queue, request, steps) VALUES (%(id)s, 'm', 'q', 'secret', 1)",
            {"id": UNKNOWN},
        )
    answer = await web.get(f"/v1/videos/{UNKNOWN}")
    assert answer.status_code == 500
    error = error_of(answer)
    assert (error["code"], error["type"]) == ("internal_error", "server_error")
    assert "secret" not in answer.text
    assert (await web.get("/health/live")).status_code == 200


@pytest.mark.usefixtures("ready_engine")
async def test_link_lost_while_a_job_is_accepted_is_503_and_leaves_no_job(
    web: httpx.AsyncClient, database: Database
) -> None:
    await database.execute(
        """
        CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN new; END';
        CREATE TRIGGER cut BEFORE INSERT ON procrastinate_jobs EXECUTE FUNCTION cut();
        """
    )
    answer = await web.post("/v1/videos", json={"prompt": "a cat"})
    assert answer.status_code == 503, answer.text
    assert error_of(answer)["code"] == "database_unavailable"
    assert answer.headers["retry-after"]
    assert (await web.get("/v1/videos")).json()["data"] == []
    await database.execute("DROP TRIGGER cut ON procrastinate_jobs")
    assert (await web.post("/v1/videos", json={"prompt": "a cat"})).status_code == 200


async def test_database_without_schema_is_a_reason_to_wait(empty_postgres_url: str, tmp_path: Path) -> None:
    with served(Settings(database_url=empty_postgres_url, var=tmp_path)) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            answer = await client.get("/v1/videos")
    assert answer.status_code == 503
    assert error_of(answer)["code"] == "database_unavailable"
    assert answer.headers["retry-after"] == "5"


def test_request_id_is_echoed_when_it_is_a_word_and_made_otherwise(shared_http: httpx.Client) -> None:
    given = shared_http.get("/health/live", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    for wrong in ("a b", "x" * 129, 'a"b', ""):
        made = shared_http.get("/health/live", headers={"x-request-id": wrong}).headers["x-request-id"]
        assert made.startswith("req_")
    assert shared_http.get("/nowhere", headers={"x-request-id": "abc-2"}).headers["x-request-id"] == "abc-2"


def test_missing_database_url_is_a_clear_setting_error() -> None:
    with pytest.raises(SettingsError, match="FRAMEKEEPER_DATABASE_URL is not set"):
        create_app(Settings(database_url=""))


def test_description_lists_all_fields(shared_http: httpx.Client) -> None:
    assert shared_http.get("/docs").status_code == 200
    schema = shared_http.get("/openapi.json").json()
    body = schema["paths"]["/v1/videos"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert "num_inference_steps" in body["schema"]["properties"]
    for path in schema["paths"].values():
        for operation in path.values():
            assert "default" in operation["responses"]
            assert "422" not in operation["responses"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/videos", "GET, POST"),
        ("/v1/videos/batch", "POST"),
        ("/v1/videos/video_" + "0" * 32, "DELETE, GET"),
        ("/v1/videos/video_" + "0" * 32 + "/content", "GET, HEAD"),
    ],
)
def test_method_that_is_not_taken_names_those_that_are(
    shared_http: httpx.Client, path: str, methods: str
) -> None:
    answer = shared_http.options(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/videos?batch_id=a%00b", "batch_id"),
        ("/v1/videos?batch_id=", "batch_id"),
        ("/v1/videos?status=done", "status"),
        ("/v1/incidents?engine=%00", "engine"),
        ("/v1/incidents?after=%00", "after"),
    ],
)
def test_query_that_the_database_cannot_read_is_refused(
    shared_http: httpx.Client, path: str, param: str
) -> None:
    answer = shared_http.get(path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
