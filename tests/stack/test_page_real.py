"""The page before the real engine: a prompt becomes a video that plays."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from system import System


def test_prompt_on_the_page_becomes_a_video_that_plays(system: System, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(system.urls[0])
    expect(page.locator("#engine")).to_contain_text("Ready", timeout=20_000)
    page.locator("#lengths input").last.check()
    page.locator("#prompt").fill("two robots box under a spotlight")
    page.get_by_role("button", name="Make the video").click()
    expect(page.locator(".card .making b")).to_contain_text("Step", timeout=30_000)
    expect(page.locator(".card")).to_have_attribute("data-status", "completed", timeout=120_000)
    page.get_by_role("button", name="Watch").click()
    page.wait_for_function("() => video.readyState >= 3 && video.currentTime > 0")
    length, width, fault = page.evaluate("[video.duration, video.videoWidth, video.error]")
    assert length > 1
    assert (width > 0, fault) == (True, None)
