"""Videos that start from a picture: the real vllm-omni with checkpoints of TI2V-5B's and I2V-A14B's form.

Random weights do not keep what a picture shows. That it has an influence, and always the same one, is what
can be seen.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import openai
import pytest
from PIL import Image

from cluster import Cluster, new_database
from engine_runtime import engine_python
from faulty import REQUEST, final, with_database
from framekeeper.database.pool import Database
from framekeeper.jobs import submit
from framekeeper.jobs.video import Video, VideoRequest
from framekeeper.media.encode import read_video
from framekeeper.media.inspect import inspect
from framekeeper.media.store import sheet_name
from sheet import frames_of_sheet
from system import System, wait_for

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

Frames = np.ndarray[Any, np.dtype[np.uint8]]


def started(home: Path, database_url: str, kind: str) -> Iterator[System]:
    """One supervisor with an engine of this kind; its warm-up has made a video from a picture."""
    model = home / f"wan2.2-{kind}-tiny"
    subprocess.run([engine_python(), "-m", "framekeeper.checkpoint.tiny", model, kind], check=True)
    system = System(
        home / "system",
        database_url,
        profile=f"cpu-tiny-{kind}",
        model=model,
        engine_python=engine_python(),
    )
    try:
        system.start_supervisor()
        system.urls = [system.start_gateway()]
        system.wait_ready()
        yield system
        system.close()
    finally:
        system.abandon()


@pytest.fixture(scope="module", params=["ti2v", "i2v"])
def system(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_cluster: Cluster,
    postgres_template: str,
) -> Iterator[System]:
    for url in new_database(postgres_cluster, postgres_template):
        yield from started(tmp_path_factory.mktemp("system"), url, request.param)


def kind_of(system: System) -> str:
    return system.settings["PROFILE"].removeprefix("cpu-tiny-")


def submitted(system: System, picture: Frames | None) -> str:
    fields = {name: getattr(REQUEST, name) for name in REQUEST.__struct_fields__}
    if kind_of(system) == "ti2v":
        fields |= {"guidance_scale_2": None, "boundary_ratio": None}
    terms = submit.Terms()
    if picture is not None:
        name = f"inputs/{uuid4().hex}.png"  # a job takes its picture away with it
        (system.media / "inputs").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(system.media / name)
        terms = submit.Terms(input_file=name)

    async def work(database: Database) -> str:
        model = f"wan2.2-{kind_of(system)}-tiny"
        return (await submit.submit(database, model, VideoRequest(**fields), terms)).id

    return str(with_database(system, work))


def frames_of(system: System, video: Video) -> Frames:
    assert video.state == "completed", video.error_message
    assert video.video_file is not None
    encoded = read_video(system.media / video.id / video.video_file)
    assert encoded.shape == (9, 64, 64, 3)
    assert inspect(encoded).fault is None
    return frames_of_sheet(system.media / video.id / sheet_name(video.video_file))


def picture(colour: tuple[int, int, int]) -> Frames:
    """Wider than the video, with the colour in its left half."""
    pixels = np.full((90, 160, 3), 128, np.uint8)
    pixels[:, :80] = colour
    return pixels


def test_the_first_frame_depends_on_the_picture_and_on_nothing_else(system: System) -> None:
    asked = [picture((230, 20, 20)), picture((20, 20, 230)), picture((230, 20, 20))]
    ids = [submitted(system, each) for each in asked]
    red, blue, again = (frames_of(system, final(system, each, 60)) for each in ids)
    assert np.array_equal(red, again)
    assert not np.array_equal(red[0], blue[0])
    assert np.abs(red[0].astype(int) - blue[0]).mean() > 1, "more than what JPEG loses"


def test_official_client_gets_a_video_from_its_file(system: System, tmp_path: Path) -> None:
    Image.fromarray(picture((20, 200, 20))).save(tmp_path / "cat.jpg")
    client = openai.OpenAI(base_url=f"{system.urls[0]}/v1", api_key="unused", max_retries=0)
    video = client.videos.create_and_poll(
        prompt="a cat", size="64x96", input_reference=tmp_path / "cat.jpg", poll_interval_ms=50
    )
    assert (video.status, video.error) == ("completed", None)
    client.videos.download_content(video.id).write_to_file(tmp_path / "out.mp4")
    frames = read_video(tmp_path / "out.mp4")
    assert frames.shape[1:] == (96, 64, 3)
    assert inspect(frames).fault is None
    wait_for(
        "the picture goes with its job", lambda: not list((system.media / "inputs").glob(f"{video.id}*")), 10
    )


def test_without_a_picture_a_model_of_both_kinds_goes_by_the_text_and_the_other_refuses(
    system: System,
) -> None:
    video = final(system, submitted(system, None), 60)
    if kind_of(system) == "ti2v":
        given = final(system, submitted(system, picture((230, 20, 20))), 60)
        assert not np.array_equal(frames_of(system, video)[0], frames_of(system, given)[0])
    else:
        assert (video.state, video.engine_deaths) == ("failed", 0)
        assert "send one" in (video.error_message or "")
    assert system.engine()["restarts"] == 0
