"""`framekeeper generate --image`: a picture goes along, and what is none is told before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from cluster import Cluster
from faulty import serving
from framekeeper.client.commands import MOST_PICTURE
from framekeeper.media import picture
from framekeeper.media.encode import read_video
from system import System

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(
    postgres_cluster: Cluster, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """A service whose model takes pictures."""
    yield from serving(
        postgres_cluster, postgres_template, tmp_path_factory.mktemp("image"), image="optional"
    )


def known(service: System) -> list[str]:
    return [video["id"] for video in httpx.get(f"{service.urls[0]}/v1/videos").json()["data"]]


def generate(service: System, *arguments: object) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "framekeeper", "generate", "a cat", "--url", service.urls[0]]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_video_starts_from_the_picture(service: System, tmp_path: Path) -> None:
    target, source = tmp_path / "out.mp4", tmp_path / "cat.webp"
    Image.new("RGB", (300, 200), (200, 30, 30)).save(source)
    assert generate(service, "--image", source, "-o", target) == (0, f"{target}\n", "")
    (job,) = httpx.get(f"{service.urls[0]}/v1/videos?limit=1").json()["data"]
    assert job["has_input_reference"] is True
    # The engine that breaks on order shows the mean colour of its picture in the first frame.
    assert read_video(target)[0].mean(axis=(0, 1)) == pytest.approx([200, 30, 30], abs=20)


def test_what_is_no_picture_ends_with_2_where_that_is_known_here(service: System, tmp_path: Path) -> None:
    assert MOST_PICTURE == picture.MOST_BYTES
    before = known(service)
    (tmp_path / "empty.png").touch()
    (tmp_path / "large.png").write_bytes(bytes(MOST_PICTURE + 1))
    for name, words in (
        ("absent.png", "No such file"),
        ("empty.png", "is empty"),
        ("large.png", "more than 10 MiB"),
        (".", "Is a directory"),
    ):
        status, out, err = generate(service, "--image", tmp_path / name)
        assert (status, out) == (2, "")
        assert err.startswith("--image ")
        assert words in err
    (tmp_path / "text.png").write_text("no picture")
    status, _, err = generate(service, "--image", tmp_path / "text.png")
    assert status != 0
    assert "input_reference" in err
    assert known(service) == before
