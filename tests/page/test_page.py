"""The page at `/` as a person uses it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from faulty import begin
from remembered import ever_said
from system import System, wait_for

pytestmark = pytest.mark.slow


def opened(page: Page, service: System) -> None:
    page.goto(service.urls[0])
    expect(page.locator("#sizes input").first).to_be_attached()


def make(page: Page, prompt: str, steps: int | None = None) -> str:
    """Submit by keyboard alone; returns the job's id."""
    page.locator("#prompt").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type(prompt)
    if steps:
        page.locator("#more").evaluate("more => (more.open = true)")
        page.locator("#num_inference_steps").fill(str(steps))
        page.locator("#prompt").focus()
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        page.keyboard.press("Control+Enter")
    assert answered.value.status == 200, answered.value.text()
    return str(answered.value.json()["id"])


def get(service: System, video_id: str) -> dict[str, Any]:
    body: dict[str, Any] = httpx.get(f"{service.urls[0]}/v1/videos/{video_id}").json()
    return body


def card(page: Page, video_id: str) -> Any:
    return page.locator(f"[id='{video_id}']")


def status(page: Page, video_id: str, wanted: str, seconds: float = 30) -> None:
    expect(card(page, video_id)).to_have_attribute("data-status", wanted, timeout=seconds * 1000)


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


def test_prompt_by_keyboard_shows_every_step_and_the_video_plays(page: Page, service: System) -> None:
    opened(page, service)
    video_id = make(page, "a fox in the snow", steps=20)
    status(page, video_id, "completed")
    seen = ever_said(page, ".making b")
    assert len([each for each in seen if re.fullmatch(r"Step \d+ of 20", each)]) >= 4, seen
    card(page, video_id).locator("button.frame").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => video.readyState >= 3 && video.currentTime > 0")
    facts = page.evaluate("[video.duration, video.videoWidth, video.error]")
    assert facts == [pytest.approx(9 / 8, abs=0.01), 64, None]
    page.keyboard.press("Escape")
    expect(page.locator("#player")).not_to_be_visible()
    assert page.evaluate("document.querySelector('.card img').naturalWidth") > 0


@pytest.mark.parametrize("with_events", [True, False], ids=["events", "polling"])
def test_progress_comes_by_events_and_by_polling_where_there_are_none(
    page: Page, service: System, with_events: bool
) -> None:
    streams: list[str] = []
    if not with_events:
        page.route("**/events", lambda route: route.fulfill(status=404, body="{}"))
    page.on(
        "response", lambda answer: streams.append(answer.header_value("content-type") or "")
        if answer.url.endswith("/events") else None,
    )  # fmt: skip
    opened(page, service)
    video_id = make(page, "by events" if with_events else "by polling", steps=30)
    status(page, video_id, "completed")
    seen = ever_said(page, ".making b")
    assert any(each.startswith("Step") for each in seen), seen
    assert len(streams) >= 1
    assert len(streams) <= 3
    assert all(kind.startswith("text/event-stream") for kind in streams) == with_events


def test_choices_are_what_the_profile_admits_and_are_sent(page: Page, service: System) -> None:
    opened(page, service)
    assert "128x128" in page.locator("#sizes input").evaluate_all("all => all.map(one => one.value)")
    page.locator("#sizes input[value='128x128']").check()
    page.locator("#lengths input").last.check()
    page.locator("#more summary").click()
    page.locator("#seed").fill("9007199254740993")
    page.locator("#negative_prompt").fill("rain")
    video = get(service, make(page, "large", steps=3))
    assert (video["size"], video["num_frames"], video["num_inference_steps"]) == ("128x128", 49, 3)
    assert (video["seed"], video["negative_prompt"]) == (2**53 + 1, "rain")


def test_fault_is_shown_beside_its_field_and_goes_when_it_is_mended(page: Page, service: System) -> None:
    opened(page, service)
    page.locator("#prompt").fill("   ")
    page.locator("#submit").click()
    expect(page.locator("#prompt-error")).to_contain_text("what the video should show")
    page.locator("#prompt").fill("x")
    page.locator("#more summary").click()
    page.locator("#num_inference_steps").fill("999")
    page.locator("#submit").click()
    expect(page.locator("#num_inference_steps-error")).to_contain_text("more than 50")
    expect(page.locator("#num_inference_steps")).to_be_focused()
    expect(page.locator("#num_inference_steps")).to_have_attribute("aria-invalid", "true")
    page.locator("#num_inference_steps").fill("5")
    expect(page.locator("#num_inference_steps-error")).to_be_empty()


def test_cancelled_job_is_retried_with_the_same_fields_and_then_deleted(page: Page, service: System) -> None:
    opened(page, service)
    first = make(page, "again, please", steps=50)
    card(page, first).get_by_role("button", name="Cancel").click()
    status(page, first, "cancelled")
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        card(page, first).get_by_role("button", name="Retry").click()
    second = answered.value.json()["id"]
    before, after = get(service, first), get(service, second)
    same = ("prompt", "size", "seed", "num_frames", "num_inference_steps", "guidance_scale", "model")
    assert [before[name] for name in same] == [after[name] for name in same]
    card(page, second).get_by_role("button", name="Cancel").click()
    card(page, first).get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep").click()
    expect(card(page, first)).to_be_visible()
    card(page, first).get_by_role("button", name="Delete").click()
    page.locator("#confirm").get_by_role("button", name="Delete").click()
    expect(card(page, first)).to_have_count(0)
    assert httpx.get(f"{service.urls[0]}/v1/videos/{first}").status_code == 404


def test_download_has_a_name_that_says_what_it_is(page: Page, service: System) -> None:
    opened(page, service)
    video_id = make(page, "rain: on a window/pane", steps=2)
    status(page, video_id, "completed")
    with page.expect_download() as downloaded:
        card(page, video_id).get_by_role("button", name="Download").click()
    assert downloaded.value.suggested_filename == "rain-on-a-window-pane.mp4"
    content = httpx.get(f"{service.urls[0]}/v1/videos/{video_id}/content").content
    assert Path(downloaded.value.path()).read_bytes() == content


def test_job_outlives_the_engine_and_the_banner_tells(page: Page, service: System) -> None:
    opened(page, service)
    expect(page.locator("#banner")).not_to_be_visible()
    video_id = make(page, "survives", steps=50)
    wait_for("the job runs", lambda: get(service, video_id)["step"] >= 1, 20)
    os.kill(service.worker_pid(), signal.SIGKILL)
    status(page, video_id, "completed", 40)
    assert any("The engine" in each for each in ever_said(page, "#banner"))
    expect(page.locator("#banner")).not_to_be_visible()
    assert get(service, video_id)["attempt"] == 2
    page.reload()
    page.locator("#incidents summary").click()
    expect(page.locator("#incident-list li").first).to_be_visible()


def test_gateway_that_goes_away_and_comes_back_is_told(page: Page, service: System) -> None:
    opened(page, service)
    video_id = make(page, "meanwhile", steps=30)
    service.stop_gateways(signal.SIGKILL)
    expect(page.locator("#banner")).to_contain_text("does not answer")
    service.start_gateway(int(service.urls[0].rsplit(":", 1)[1]))
    expect(page.locator("#banner")).not_to_be_visible()
    status(page, video_id, "completed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_and_fits_every_width(
    page: Page, service: System, scheme: Any, shots: Path
) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    opened(page, service)
    done = make(page, "finished " * 12, steps=2)
    status(page, done, "completed")
    running = make(page, "running", steps=50)
    waiting = make(page, "waiting", steps=50)
    status(page, running, "in_progress")
    for width in (320, 768, 1280):
        page.set_viewport_size({"width": width, "height": 860})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=shots / f"{scheme}-{width}.png", full_page=True)
        assert violations(page) == []
    card(page, done).locator("button.frame").click()
    assert violations(page) == []
    page.screenshot(path=shots / f"{scheme}-player.png")
    page.keyboard.press("Escape")
    for each in (running, waiting):
        httpx.delete(f"{service.urls[0]}/v1/videos/{each}")
        expect(card(page, each)).to_have_count(0)


def test_everything_is_reached_by_the_tab_key(page: Page, service: System) -> None:
    opened(page, service)
    video_id = make(page, "reachable", steps=2)
    status(page, video_id, "completed")
    page.reload()
    expect(card(page, video_id)).to_be_visible()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel || ''"))
    for name in ("prompt", "submit", "Watch reachable", "Download: reachable", "Delete: reachable"):
        assert name in reached
    outline = card(page, video_id).locator("button.frame")
    outline.focus()
    assert outline.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"


def test_key_is_asked_for_once_kept_for_the_tab_and_never_in_an_address(page: Page, service: System) -> None:
    url = service.start_gateway(auth="on")
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "framekeeper",
            "keys",
            "create",
            "page",
            "--scope",
            "submit",
            "--scope",
            "read",
        ],
        env=service.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    secret = re.search(r"fk_[\w-]+", made.stdout)
    assert secret is not None
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(url)
    page.locator("#key").fill("fk_wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-error")).to_contain_text("not known")
    assert violations(page) == []
    page.locator("#key").fill(secret[0])
    page.keyboard.press("Enter")
    expect(page.locator("#key-dialog")).not_to_be_visible()
    expect(page.locator("#sizes input").first).to_be_attached()
    video_id = make(page, "mine", steps=2)
    status(page, video_id, "completed")
    card(page, video_id).locator("button.frame").click()
    page.wait_for_function("() => video.readyState >= 3")
    assert page.evaluate("video.src").startswith("blob:")
    page.keyboard.press("Escape")
    # A key that is no admin's sees its own videos only, and no incidents.
    assert page.locator(".card").count() == 1
    expect(page.locator("#incidents")).not_to_be_visible()
    page.reload()
    expect(card(page, video_id)).to_be_visible()
    assert not [each for each in addresses if secret[0] in each]
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_many_jobs_come_in_pages(page: Page, service: System) -> None:
    url = service.urls[0]
    ids = [
        httpx.post(f"{url}/v1/videos", json={"prompt": f"job {n}", "num_inference_steps": 1}).json()["id"]
        for n in range(30)
    ]
    opened(page, service)
    expect(card(page, ids[-1])).to_be_visible()
    expect(card(page, ids[0])).to_have_count(0)
    page.get_by_role("button", name="Show older").click()
    expect(card(page, ids[0])).to_be_attached()


def test_page_asks_nobody_else_for_anything(page: Page, service: System) -> None:
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/v1")[0].split("/page/")[0].rstrip("/")))
    opened(page, service)
    assert hosts == {service.urls[0]}
    policy = httpx.get(service.urls[0]).headers["content-security-policy"]
    assert "unsafe" not in policy
    first = httpx.get(f"{service.urls[0]}/page/app.js")
    again = httpx.get(f"{service.urls[0]}/page/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert httpx.get(f"{service.urls[0]}/page/..%2Fapp.py").status_code == 404


def test_description_of_the_api_loads_nothing_from_elsewhere(
    page: Page, service: System, shots: Path
) -> None:
    lines: list[str] = []
    asked: set[str] = set()
    page.on("console", lambda line: lines.append(line.text))
    page.on("request", lambda request: asked.add(request.url.removeprefix(service.urls[0])))
    page.goto(f"{service.urls[0]}/docs")
    expect(page.get_by_role("heading", name="POST /v1/videos", exact=True)).to_be_visible()
    assert asked <= {"/docs", "/page/page.css", "/page/reference.css", "/page/icon.svg"}
    page.locator("nav a", has_text="/v1/videos/{video_id}/events").click()
    expect(page.locator("article:target h3")).to_contain_text("/v1/videos/{video_id}/events")
    page.locator("article:target a", has_text="ErrorAnswer").first.click()
    expect(page.locator("article:target h3")).to_have_text("ErrorAnswer")
    assert violations(page) == []
    for scheme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{service.urls[0]}/docs")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.screenshot(path=shots / f"docs-{scheme}.png")
        page.locator("#post-v1-videos").screenshot(path=shots / f"docs-create-{scheme}.png")
    assert lines == []


@pytest.mark.parametrize(
    ("faults", "script", "words"),
    [
        ([], {"load_seconds": 120, "profile": ""}, "The engine is loading the model"),
        (
            [{"at": "load", "what": "raise", "times": 99, "text": "ValueError: the weights are torn"}],
            {},
            "the weights are torn",
        ),
    ],
    ids=["loading", "failing"],
)
def test_engine_that_makes_nothing_yet_is_told_in_a_sentence(
    browser: Browser,
    tmp_path: Path,
    postgres_url: str,
    faults: list[dict[str, Any]],
    script: dict[str, Any],
    words: str,
    shots: Path,
) -> None:
    system = begin(tmp_path, postgres_url, faults, wait=False, script=script)
    try:
        system.urls = [system.start_gateway()]
        page = browser.new_page(viewport={"width": 768, "height": 860})
        opened(page, system)
        expect(page.locator("#banner")).to_contain_text(words, timeout=90_000)
        expect(page.locator("#banner")).to_contain_text("Jobs wait and are kept.")
        assert violations(page) == []
        page.screenshot(path=shots / f"banner-{len(faults)}.png")
        page.context.close()
    finally:
        system.abandon()
