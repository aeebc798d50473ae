"""The page before the real engine: a prompt becomes a video that plays."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from remembered import REMEMBER, ever_said
from system import System

# The small model makes a step in some 30 ms and the page hears of one about every 100 ms.
STEPS = "50"


def test_prompt_on_the_page_becomes_a_video_that_plays(system: System, browser: Browser) -> None:
    page = browser.new_page()
    page.add_init_script(REMEMBER)
    page.goto(system.urls[0])
    expect(page.locator("#engine")).to_contain_text("Ready", timeout=20_000)
    page.locator("#more summary").click()
    page.locator("#num_inference_steps").fill(STEPS)
    page.locator("#sizes input[value='128x128']").check()
    page.locator("#lengths input").last.check()
    page.locator("#prompt").fill("two robots box under a spotlight")
    page.get_by_role("button", name="Make the video").click()
    expect(page.locator(".card")).to_have_attribute("data-status", "completed", timeout=120_000)
    said = ever_said(page, ".making b")
    assert any(re.fullmatch(r"Step \d+ of \d+", each) for each in said), said
    page.get_by_role("button", name="Watch").click()
    page.wait_for_function("() => video.readyState >= 3 && video.currentTime > 0")
    length, width, fault = page.evaluate("[video.duration, video.videoWidth, video.error]")
    assert length > 1
    assert (width > 0, fault) == (True, None)
