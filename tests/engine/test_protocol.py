"""The wire: every message has a stored snapshot, so that a change shows in review."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from framekeeper.engine import protocol

SNAPSHOTS = Path(__file__).with_name("snapshots") / "protocol.json"

GENERATE = protocol.Generate(
    job="video_1",
    attempt=2,
    prompt="a cat",
    negative_prompt=None,
    width=832,
    height=480,
    num_frames=81,
    fps=16,
    num_inference_steps=40,
    guidance_scale=4.0,
    guidance_scale_2=3.0,
    boundary_ratio=0.875,
    flow_shift=5.0,
    seed=7,
    directory="/media/video_1",
)
FROM_A_PICTURE = msgspec.structs.replace(GENERATE, image="/media/inputs/video_1.png")
FROM_PARENT = [
    protocol.Load(backend="vllm_omni", model="/models/a", options={"device": "cpu"}),
    protocol.WarmUp(request=GENERATE, experts=2),
    GENERATE,
    FROM_A_PICTURE,
    protocol.Cancel(job="video_1", attempt=2),
    protocol.Shutdown(),
]
FROM_CHILD = [
    protocol.Phase(name="loading"),
    protocol.Phase(name="denoising", job="video_1", attempt=2),
    protocol.Loaded(facts={"torch": "2.13.0"}),
    protocol.Step(job="video_1", attempt=2, step=3, steps=40, seconds=1.5, memory_bytes=10, expert=0),
    protocol.Done(job="video_1", attempt=2, video="2.mp4", thumbnail="2.jpg", bytes=1000, facts={}),
    protocol.Ready(facts={}),
    protocol.Cancelled(job="video_1", attempt=2, step=4),
    protocol.Refused(job="video_1", attempt=2, message="too odd", param="size"),
    protocol.Failed(
        kind="engine", phase="denoising", message="boom", healthy=False, job="video_1", attempt=2
    ),
]


def name(message: protocol.Message) -> str:
    match message:
        case protocol.Phase(job=str()):
            return "Phase-job"
        case protocol.Generate(image=str()):
            return "Generate-image"
        case _:
            return type(message).__name__


@pytest.mark.parametrize("message", [*FROM_PARENT, *FROM_CHILD], ids=name)
def test_message_looks_on_the_wire_as_it_did(message: protocol.Message) -> None:
    stored = json.loads(SNAPSHOTS.read_text())
    assert msgspec.msgpack.decode(protocol.encode(message)) == stored[name(message)]


def test_every_message_has_a_snapshot() -> None:
    known = {kind.__name__ for kind in (*protocol.FromParent.__args__, *protocol.FromChild.__args__)}
    assert {type(message).__name__ for message in [*FROM_PARENT, *FROM_CHILD]} == known


@pytest.mark.parametrize("message", FROM_PARENT, ids=name)
def test_message_from_the_parent_is_read_back(message: protocol.FromParent) -> None:
    assert protocol.decode_from_parent(protocol.encode(message)) == message


@pytest.mark.parametrize("message", FROM_CHILD, ids=name)
def test_message_from_the_child_is_read_back(message: protocol.FromChild) -> None:
    assert protocol.decode_from_child(protocol.encode(message)) == message


def test_an_order_from_before_there_were_pictures_is_still_read() -> None:
    older = {key: value for key, value in snapshot()["Generate"].items() if key != "image"}
    assert protocol.decode_from_parent(msgspec.msgpack.encode(older)) == GENERATE


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "Launch"}),
        msgspec.msgpack.encode({"type": "Step", "job": 1}),
    ],
)
def test_an_unknown_message_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        protocol.decode_from_child(raw)


def snapshot() -> dict[str, Any]:
    """What the snapshot file should hold; written by hand with `python -m tests.engine.test_protocol`."""
    messages = [*FROM_PARENT, *FROM_CHILD]
    return {name(message): msgspec.msgpack.decode(protocol.encode(message)) for message in messages}


if __name__ == "__main__":
    SNAPSHOTS.write_text(json.dumps(snapshot(), indent=2, sort_keys=True) + "\n")
