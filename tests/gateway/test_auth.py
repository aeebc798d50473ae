"""API keys: who gets in, what each scope opens, and whose jobs one sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from framekeeper.database.pool import Database
from framekeeper.gateway import auth
from framekeeper.gateway.app import create_app
from framekeeper.jobs.engines import EngineState
from framekeeper.keys import rows
from framekeeper.keys.key import Highest, KeyLimits, Scope
from framekeeper.settings import Settings
from gateway.conftest import register, report
from gateway.serving import served

OPEN_TO_ALL = {"/health/live", "/health/ready", "/health/startup", "/metrics", "/"}


@pytest.fixture
def guarded(settings: Settings) -> Iterator[str]:
    with served(settings.model_copy(update={"auth": "on"})) as base:
        yield base


@pytest.fixture
def key(postgres_url: str) -> Callable[..., str]:
    def make(name: str, *scopes: Scope, priority: Highest | None = None) -> str:
        async def run() -> str:
            database = Database(postgres_url, size=1)
            await database.open()
            try:
                return (await rows.create(database, name, scopes, KeyLimits(priority=priority)))[1]
            finally:
                await database.close()

        return asyncio.run(run())

    return make


@pytest.fixture
def engine(postgres_url: str) -> None:
    async def run() -> None:
        database = Database(postgres_url, size=1)
        await database.open()
        await register(database)
        await report(database, EngineState.READY)
        await database.close()

    asyncio.run(run())


def client(base: str, secret: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    return httpx.Client(base_url=base, headers=headers, timeout=20)


def scopes_of(route: APIRoute) -> set[str]:
    found: set[str] = set()
    waiting: list[Any] = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        found.update(dependant.own_oauth_scopes or ())
        waiting += dependant.dependencies
    return found


def test_every_route_of_the_api_names_its_scope(settings: Settings) -> None:
    found = {
        (method, route.path): scopes_of(route)
        for route in api_routes(create_app(settings))
        for method in route.methods
        if route.path not in OPEN_TO_ALL and route.path.startswith(("/v1", "/health", "/metrics"))
    }
    assert len(found) >= 10
    nameless = [name for name, scopes in found.items() if not scopes & set(Scope)]
    assert nameless == []
    changing = {name: scopes for name, scopes in found.items() if name[0] not in ("GET", "HEAD")}
    assert all(scopes & {"submit", "admin"} for scopes in changing.values()), changing
    assert found["GET", "/v1/incidents"] == {"admin"}


def api_routes(app: Any) -> list[APIRoute]:
    found: list[APIRoute] = []
    waiting = list(app.routes)
    while waiting:
        each = waiting.pop()
        if isinstance(each, APIRoute):
            found.append(each)
        waiting += getattr(getattr(each, "original_router", None) or each, "routes", None) or []
    return found


def test_without_keys_everybody_may_do_everything(url: str) -> None:
    with client(url) as anybody:
        assert anybody.get("/v1/videos").status_code == 200
        assert anybody.get("/v1/incidents").status_code == 200


@pytest.mark.usefixtures("engine")
def test_a_request_without_a_valid_key_is_refused(guarded: str) -> None:
    for secret, code in (
        (None, "missing_key"),
        ("fk_" + "a" * 43, "invalid_key"),
        ("x" * 5000, "invalid_key"),
    ):
        with client(guarded, secret) as stranger:
            answer = stranger.post("/v1/videos", json={"prompt": "a cat"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    with client(guarded) as stranger:
        assert stranger.get("/health/live").status_code == 200
        assert stranger.get("/metrics").status_code == 200


@pytest.mark.usefixtures("engine")
def test_a_scope_opens_what_it_names_and_no_more(guarded: str, key: Callable[..., str]) -> None:
    submit, read, admin = (key(scope.value, scope) for scope in (Scope.SUBMIT, Scope.READ, Scope.ADMIN))

    def status(secret: str, method: str, path: str) -> int:
        with client(guarded, secret) as caller:
            return caller.request(method, path, json={"prompt": "a cat"}).status_code

    assert [status(each, "POST", "/v1/videos") for each in (submit, read, admin)] == [200, 403, 200]
    assert [status(each, "GET", "/v1/videos") for each in (submit, read, admin)] == [403, 200, 200]
    assert [status(each, "GET", "/v1/incidents") for each in (submit, read, admin)] == [403, 403, 200]


@pytest.mark.usefixtures("engine")
def test_a_key_that_only_submits_sees_what_can_be_made_and_how_its_job_is(
    guarded: str, key: Callable[..., str]
) -> None:
    with client(guarded, key("a", Scope.SUBMIT)) as caller, client(guarded, key("b", Scope.SUBMIT)) as other:
        video = caller.post("/v1/videos", json={"prompt": "a cat"}).json()["id"]
        assert caller.get("/v1/models").json()["data"][0]["id"] == "tiny"
        assert caller.get("/v1/models/tiny").status_code == 200
        assert caller.get("/v1/queue").status_code == 200
        assert caller.get(f"/v1/videos/{video}").json()["status"] == "queued"
        with caller.stream("GET", f"/v1/videos/{video}/events") as events:
            assert next(events.iter_lines()).startswith("id:")
        assert other.get(f"/v1/videos/{video}").status_code == 404
        for path in ("/v1/videos", f"/v1/videos/{video}/content", "/v1/engines"):
            refused = caller.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "scope_missing"), path
            assert "`read`" in refused.json()["error"]["message"]


@pytest.mark.usefixtures("engine")
def test_a_key_has_a_highest_priority(guarded: str, key: Callable[..., str]) -> None:
    both = (Scope.SUBMIT, Scope.READ)
    secrets = {
        "plain": key("plain", *both),
        "urgent": key("urgent", *both, priority=Highest.HIGH),
        "patient": key("patient", *both, priority=Highest.LOW),
        "boss": key("boss", Scope.ADMIN),
    }

    def given(name: str, priority: str | None) -> str:
        with client(guarded, secrets[name]) as caller:
            answer = caller.post("/v1/videos", json={"prompt": "a cat", "priority": priority})
            if answer.status_code == 200:
                return str(answer.json()["priority"])
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (403, "priority"), error
            assert f"--priority {priority}" in error["message"]
            return str(error["code"])

    no = "priority_not_allowed"
    wished = (None, "low", "normal", "high")
    assert [given("plain", each) for each in wished] == ["normal", "low", "normal", no]
    assert [given("urgent", each) for each in wished] == ["normal", "low", "normal", "high"]
    assert [given("patient", each) for each in wished] == ["low", "low", no, no]
    assert [given("boss", each) for each in wished] == ["normal", "low", "normal", "high"]
    with client(guarded, secrets["plain"]) as caller:
        requests = [{"prompt": "a cat"}, {"prompt": "a cat", "priority": "high"}]
        assert caller.post("/v1/videos/batch", json={"requests": requests}).status_code == 403
        assert len(caller.get("/v1/videos").json()["data"]) == 3


@pytest.mark.usefixtures("engine")
def test_jobs_are_seen_by_their_owner_and_by_admins(guarded: str, key: Callable[..., str]) -> None:
    both = (Scope.SUBMIT, Scope.READ)
    with (
        client(guarded, key("one", *both)) as one,
        client(guarded, key("other", *both)) as other,
        client(guarded, key("boss", Scope.ADMIN)) as boss,
    ):
        video = one.post("/v1/videos", json={"prompt": "a cat"}).json()["id"]
        assert one.get(f"/v1/videos/{video}").status_code == 200
        for method, path in (
            ("GET", ""), ("GET", "/content"), ("POST", "/cancel"), ("DELETE", ""),
        ):  # fmt: skip
            answer = other.request(method, f"/v1/videos/{video}{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "video_not_found")
        assert other.get("/v1/videos").json()["data"] == []
        assert [each["id"] for each in boss.get("/v1/videos").json()["data"]] == [video]
        assert boss.delete(f"/v1/videos/{video}").status_code == 200


@pytest.mark.slow
def test_a_revoked_key_is_refused_within_the_stated_seconds(
    guarded: str, key: Callable[..., str], postgres_url: str
) -> None:
    secret = key("one", Scope.READ)
    with client(guarded, secret) as caller:
        assert caller.get("/v1/models").status_code == 200

        async def revoke() -> None:
            database = Database(postgres_url, size=1)
            await database.open()
            await rows.revoke(database, "one")
            await database.close()

        asyncio.run(revoke())
        revoked = time.monotonic()
        while caller.get("/v1/models").status_code != 401:
            assert time.monotonic() - revoked < auth.REMEMBERED_SECONDS + 1
            time.sleep(0.2)


async def test_the_secret_itself_is_nowhere_in_the_database(database: Database) -> None:
    key, secret = await rows.create(database, "one", [Scope.READ])
    stored = await database.fetch_one("SELECT to_jsonb(k)::text AS text FROM api_keys k")
    assert stored is not None
    assert secret not in stored["text"]
    assert secret.removeprefix("fk_") not in stored["text"]
    found = await rows.valid(database, secret)
    assert found is not None
    assert found.id == key.id


async def test_a_name_is_taken_once_and_stays_taken_after_the_key_is_revoked(database: Database) -> None:
    await rows.create(database, "one", [Scope.READ])
    await rows.revoke(database, "one")
    with pytest.raises(rows.NameTaken):
        await rows.create(database, "one", [Scope.READ])
