"""Choosing a picture on the page, for a model that takes one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Page, expect

from cluster import Cluster
from faulty import serving
from system import System, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(
    postgres_cluster: Cluster, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """As the page's other service, but its model needs a picture."""
    yield from serving(
        postgres_cluster,
        postgres_template,
        tmp_path_factory.mktemp("upload"),
        image="required",
        step_seconds=0.1,
    )


def file(size: tuple[int, int] = (128, 64), kind: str = "PNG", name: str = "cat.png") -> dict[str, Any]:
    target = io.BytesIO()
    Image.new("RGB", size, "red").save(target, kind)
    return {"name": name, "mimeType": f"image/{kind.lower()}", "buffer": target.getvalue()}


def opened(page: Page, service: System) -> None:
    page.goto(service.urls[0])
    expect(page.locator("#image-field")).to_be_visible()


def test_picture_is_needed_shown_sent_and_given_again(page: Page, service: System, shots: Path) -> None:
    opened(page, service)
    expect(page.locator("#image-hint")).to_have_text("(this model needs one)")
    page.locator("#prompt").fill("a cat that wakes up")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#input_reference-error")).to_contain_text("Choose a picture")
    expect(page.locator("#image")).to_be_focused()
    page.locator("#image").set_input_files(file())
    expect(page.locator("#image-name")).to_contain_text("cat.png")
    expect(page.locator("#input_reference-error")).to_be_empty()
    page.wait_for_function("() => document.getElementById('image-preview').naturalWidth === 128")
    assert Axe().run(page).response["violations"] == []
    page.screenshot(path=str(shots / "upload.png"))
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        page.locator("#submit").click()
    made = answered.value.json()
    assert answered.value.status == 200, made
    assert made["has_input_reference"] is True
    width, height = map(int, made["size"].split("x"))
    assert width > height
    card = page.locator(f"[id='{made['id']}']")
    expect(card).to_have_attribute("data-status", "completed", timeout=30_000)
    kept = service.media / "inputs" / f"{made['id']}.png"
    wait_for("the picture of a finished job is removed", lambda: not kept.exists(), 10)


def test_what_is_no_picture_or_too_large_is_told_before_it_is_sent(page: Page, service: System) -> None:
    opened(page, service)
    posts: list[str] = []
    page.on("request", lambda sent: posts.append(sent.url) if sent.method == "POST" else None)
    page.locator("#prompt").fill("a cat")
    text = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"}
    large = {"name": "large.png", "mimeType": "image/png", "buffer": bytes(11 * 1024 * 1024)}
    for wrong, words in ((text, "PNG, JPEG or WebP"), (large, "at most 10 MB")):
        page.locator("#image").set_input_files(wrong)  # type: ignore[arg-type]
        expect(page.locator("#input_reference-error")).to_contain_text(words)
        page.locator("#submit").click()
    assert posts == []
    false = {"name": "false.png", "mimeType": "image/png", "buffer": b"<svg/>"}
    page.locator("#image").set_input_files(false)  # type: ignore[arg-type]
    page.locator("#submit").click()
    expect(page.locator("#input_reference-error")).to_contain_text("text with markup")


def test_picture_is_removed_by_keyboard(page: Page, service: System) -> None:
    opened(page, service)
    page.locator("#image").set_input_files(file())
    page.locator("#image-remove").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#image-chosen")).to_be_hidden()
    expect(page.locator("#image")).to_be_focused()
    assert page.evaluate("document.getElementById('image').files.length") == 0


def test_picture_can_be_dropped_on_the_form(page: Page, service: System) -> None:
    opened(page, service)
    page.evaluate(
        """async () => {
            const canvas = new OffscreenCanvas(64, 128);
            canvas.getContext("2d").fillRect(0, 0, 9, 9);
            const held = new DataTransfer();
            held.items.add(new File([await canvas.convertToBlob()], "dropped.png", { type: "image/png" }));
            const event = new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true });
            document.getElementById("prompt").dispatchEvent(event);
        }"""
    )
    expect(page.locator("#image-name")).to_contain_text("dropped.png")
    page.wait_for_function(
        """() => {
            const [width, height] = document.querySelector("input[name=size]:checked").value.split("x");
            return Number(height) > Number(width);
        }"""
    )


def test_retry_of_a_video_from_a_picture_sends_it_again_or_asks_for_it_in_another_tab(
    page: Page, service: System
) -> None:
    opened(page, service)
    page.locator("#prompt").fill("a cat to be cancelled")
    page.locator("#more summary").click()
    page.locator("#num_inference_steps").fill("50")
    page.locator("#image").set_input_files(file())
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        page.locator("#submit").click()
    card = page.locator(f"[id='{answered.value.json()['id']}']")
    card.get_by_role("button", name="Cancel").click()
    expect(card).to_have_attribute("data-status", "cancelled", timeout=20_000)
    page.locator("#image-remove").click()
    page.locator("#prompt").fill("")
    with page.expect_response(lambda answer: answer.request.method == "POST") as retried:
        card.get_by_role("button", name="Retry").click()
    again = retried.value.json()
    assert (retried.value.status, again["has_input_reference"]) == (200, True), again
    assert again["id"] != answered.value.json()["id"]
    page.locator(f"[id='{again['id']}']").get_by_role("button", name="Cancel").click()
    page.reload()
    card.get_by_role("button", name="Retry").click()
    expect(page.locator("#input_reference-error")).to_contain_text("Choose the picture again")
    expect(page.locator("#prompt")).to_have_value("a cat to be cancelled")
