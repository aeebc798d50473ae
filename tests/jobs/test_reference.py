"""The picture of a request: who takes one, and what size a video has that starts from it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from framekeeper.errors import InvalidRequest
from framekeeper.jobs import idempotency
from framekeeper.jobs.admission import Admitted, admit
from framekeeper.jobs.catalogue import offers
from framekeeper.jobs.engines import Engine
from framekeeper.jobs.reference import Reference, UploadedFile, mode_of, size_like
from jobs.records import ADMITS, DEFAULTS, engine


def upload(width: int = 64, height: int = 64) -> UploadedFile:
    target = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(target, "PNG")
    return UploadedFile("cat.png", target.getvalue())


def taking(image: str | None, name: str = "host/0", model: str = "tiny", **admits: Any) -> Engine:
    return engine(name, model=model, admits=ADMITS | admits | ({"image": image} if image else {}))


def admitted(engines: list[Engine], **fields: Any) -> Admitted:
    return admit({"prompt": "a cat", "model": "tiny", **fields}, engines)


def test_engine_that_says_nothing_of_pictures_takes_none() -> None:
    assert mode_of([taking(None)]) == "none"
    with pytest.raises(InvalidRequest, match="from text only; leave it out, or use other") as refused:
        admitted([taking(None), taking("required", "host/1", "other")], input_reference=upload())
    assert refused.value.param == "input_reference"


def test_all_engines_of_a_model_must_be_able_to_make_the_job() -> None:
    assert mode_of([taking("optional"), taking("none", "host/1")]) == "none"
    assert mode_of([taking("optional"), taking("required", "host/1")]) == "required"
    assert [each.image for each in offers([taking("optional")])] == ["optional"]


def test_fault_of_a_picture_is_told_together_with_the_others() -> None:
    with pytest.raises(InvalidRequest) as refused:
        admitted([taking("required")], input_reference=UploadedFile("a.png", b"<svg/>"), fps=0)
    assert "input_reference is text with markup" in refused.value.message
    assert "fps=0" in refused.value.message


def test_picture_is_part_of_what_was_admitted_and_gives_the_size() -> None:
    made = admitted([taking("optional")], input_reference=upload(320, 160))
    assert made.reference is not None
    assert (made.reference.width, made.reference.height) == (320, 160)
    assert (made.request.width, made.request.height) == (96, 48)
    asked = admitted([taking("optional")], input_reference=upload(320, 160), size="48x64")
    assert (asked.request.width, asked.request.height) == (48, 64)


@pytest.mark.parametrize(
    ("picture", "default", "multiple", "expected"),
    [
        ((1920, 1080), "832x480", 16, (832, 480)),
        ((1920, 1080), "832x480", 32, (832, 480)),
        ((1280, 720), "1280x720", 16, (1280, 720)),
        ((1280, 720), "1280x704", 32, (1280, 704)),
        ((1080, 1920), "832x480", 16, (480, 832)),
        ((1000, 1000), "832x480", 16, (624, 624)),
        ((16000, 10), "832x480", 32, (1088, 352)),
    ],
)
def test_video_has_about_the_proportions_of_its_picture(
    picture: tuple[int, int], default: str, multiple: int, expected: tuple[int, int]
) -> None:
    width, height = map(int, default.split("x"))
    assert size_like(Reference("x", b"", *picture), default, width * height, multiple) == expected


@given(
    width=st.integers(1, 16384), height=st.integers(1, 16384),
    default=st.sampled_from([(64, 64), (832, 480), (480, 832), (1280, 704)]),
    multiple=st.sampled_from([16, 32]),
)  # fmt: skip
def test_size_of_any_picture_is_admitted(
    width: int, height: int, default: tuple[int, int], multiple: int
) -> None:
    most = default[0] * default[1]
    across, down = size_like(Reference("x", b"", width, height), "{}x{}".format(*default), most, multiple)
    assert 0 < across * down <= most
    assert (across % multiple, down % multiple) == (0, 0)


def test_sides_are_multiples_of_what_the_engine_says() -> None:
    engines = [taking("optional", multiple=32)]
    with pytest.raises(InvalidRequest, match="the width 80 is not a multiple of 32: set 96x64"):
        admitted(engines, size="80x64")
    with pytest.raises(InvalidRequest, match="set 128x128, which is nearest"):
        admitted(engines, size="256x256")
    assert admitted(engines, size="96x64").request.width == 96
    (offer,) = offers(engines)
    assert all(width % 32 == 0 and height % 32 == 0 for width, height in offer.sizes)
    assert DEFAULTS["size"] == "64x64"


def test_key_of_a_repetition_goes_by_what_a_file_holds_and_not_by_its_name() -> None:
    same = [{"input_reference": UploadedFile(name, b"a picture")} for name in ("a.png", "b.png")]
    other = {"input_reference": UploadedFile("a.png", b"another")}
    first, second, third = (idempotency.fingerprint("video", [body]) for body in [*same, other])
    assert first == second != third
