"""What the page says of a service that serves less than it should."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from faulty import begin
from framekeeper.database.migrate import migrate
from framekeeper.database.pool import Database
from framekeeper.jobs.engines import EngineState
from framekeeper.keys.key import Scope
from framekeeper.keys.rows import create
from framekeeper.settings import Settings
from gateway.conftest import register, report
from gateway.serving import served
from own_postgres import own_postgres
from system import wait_for

pytestmark = pytest.mark.slow

INDUCTOR = "torch._inductor.exc.InductorError: KeyError: 'op19'"
COMPILED = "compile: regional\nfallbacks: [{name: eager, change: {compile: off}}]"


def submit(page: Page, prompt: str, steps: int) -> str:
    page.locator("#prompt").fill(prompt)
    page.locator("#more").evaluate("more => (more.open = true)")
    page.locator("#num_inference_steps").fill(str(steps))
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        page.locator("#submit").click()
    return str(answered.value.json()["id"])


def test_engine_on_a_fallback_is_told_idle_and_at_work(
    browser: Browser, tmp_path: Path, postgres_url: str, shots: Path
) -> None:
    fault = {"at": "step", "step": 2, "what": "raise", "text": INDUCTOR}
    system = begin(tmp_path, postgres_url, [fault], script={"profile": COMPILED, "step_seconds": 0.2})
    try:
        system.urls = [system.start_gateway()]
        page = browser.new_page(viewport={"width": 1024, "height": 860})
        page.goto(system.urls[0])
        expect(page.locator("#engine")).to_contain_text("Ready", timeout=20_000)
        video = submit(page, "a cat", 3)
        expect(page.locator("#engine")).to_contain_text("Degraded", timeout=40_000)
        expect(page.locator("#banner")).to_contain_text("The engine serves on a fallback")
        expect(page.locator("#banner")).to_contain_text("eager")
        expect(page.locator(f"[id='{video}']")).to_have_attribute("data-status", "completed", timeout=30_000)
        page.screenshot(path=shots / "banner-degraded.png")
        submit(page, "a dog", 40)
        wait_for("it works", lambda: system.engine()["state"] == "busy", 20)
        page.wait_for_timeout(4500)
        assert system.engine()["state"] == "busy"
        expect(page.locator("#engine")).to_contain_text("Degraded")
        expect(page.locator("#banner")).to_contain_text("The engine serves on a fallback")
        page.context.close()
        system.close()
    finally:
        system.abandon()


def in_a_thread(url: str) -> None:
    """Make the schema and a ready engine; the browser's own loop runs in this thread."""

    async def work() -> None:
        database = Database(url, size=1)
        await database.open()
        await register(database)
        await report(database, EngineState.READY)
        await database.close()

    def run() -> None:
        migrate(url)
        asyncio.run(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)


def test_database_that_goes_away_and_comes_back_is_told(
    browser: Browser, tmp_path: Path, shots: Path
) -> None:
    with own_postgres() as server:
        server.start()
        in_a_thread(server.url)
        settings = Settings(database_url=server.url, var=tmp_path, min_free_bytes=0, stale_seconds=600)
        with served(settings) as url:
            page = browser.new_page(viewport={"width": 768, "height": 860})
            page.goto(url)
            expect(page.locator("#engine")).to_contain_text("Ready", timeout=20_000)
            expect(page.locator("#banner")).not_to_be_visible()
            page.locator("#prompt").fill("a cat in the rain")
            server.stop()
            expect(page.locator("#banner")).to_contain_text("The database is away", timeout=20_000)
            expect(page.locator("#banner")).to_contain_text("Accepted jobs are kept")
            expect(page.locator("#empty")).to_contain_text(
                "Your videos cannot be shown now. The database does"
            )
            expect(page.locator("#engine")).to_contain_text("Not available")
            page.locator("#submit").click()
            expect(page.locator("#form-error")).to_contain_text(
                "The database does not answer", timeout=20_000
            )
            page.screenshot(path=shots / "banner-database.png")
            server.start()
            expect(page.locator("#banner")).not_to_be_visible(timeout=30_000)
            expect(page.locator("#empty")).to_contain_text("Nothing here yet")
            # What was written is still there, and is accepted now.
            expect(page.locator("#prompt")).to_have_value("a cat in the rain")
            page.locator("#submit").click()
            expect(page.locator(".card")).to_have_count(1)
            page.context.close()


def test_key_that_may_not_list_is_told_so_and_not_that_there_is_nothing(
    browser: Browser, tmp_path: Path, postgres_url: str, shots: Path
) -> None:
    secrets: list[str] = []

    async def made() -> None:
        database = Database(postgres_url, size=1)
        await database.open()
        secrets.append((await create(database, "sender", {Scope.SUBMIT}))[1])
        await database.close()

    thread = threading.Thread(target=asyncio.run, args=(made(),))
    thread.start()
    thread.join(60)
    with served(Settings(database_url=postgres_url, var=tmp_path, min_free_bytes=0, auth="on")) as url:
        page = browser.new_page(viewport={"width": 768, "height": 860})
        page.goto(url)
        page.locator("#key").fill(secrets[0])
        page.keyboard.press("Enter")
        expect(page.locator("#empty")).to_contain_text("This needs a key with the scope", timeout=20_000)
        expect(page.locator("#empty")).not_to_contain_text("Nothing here yet")
        page.screenshot(path=shots / "key-without-read.png")
        page.context.close()
