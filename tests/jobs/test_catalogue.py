"""What a model's engines offer."""

from __future__ import annotations

import pytest

from framekeeper.jobs.admission import admit
from framekeeper.jobs.catalogue import offers
from framekeeper.jobs.engines import EngineState
from jobs.records import ADMITS, DEFAULTS, engine


@pytest.mark.parametrize("largest", ["128x128", "832x480", "1280x720", "16x16", "64x1024"])
def test_every_suggested_size_is_admitted_and_the_default_comes_first(largest: str) -> None:
    default = "16x16" if largest == "16x16" else "64x64"
    one = engine(admits={**ADMITS, "size": largest}, defaults={**DEFAULTS, "size": default})
    (offer,) = offers([one])
    assert offer.sizes[0] == tuple(int(side) for side in default.split("x"))
    assert len(set(offer.sizes)) == len(offer.sizes)
    for width, height in offer.sizes:
        admit({"prompt": "a cat", "size": f"{width}x{height}"}, [one])


def test_hd_is_among_the_sizes_of_an_hd_profile() -> None:
    (offer,) = offers([engine(admits={**ADMITS, "size": "1280x720"})])
    assert {(1280, 720), (720, 1280), (960, 960)} <= set(offer.sizes)


def test_each_model_is_offered_once_with_its_largest_engine() -> None:
    wide = engine("b", admits={**ADMITS, "size": "256x256"})
    stopped = engine("c", admits={**ADMITS, "size": "512x512"}, state=EngineState.STOPPED)
    alone = engine("d", model="another", state=EngineState.STOPPED)
    found = offers([engine("a"), wide, stopped, alone])
    assert [(offer.model, offer.size) for offer in found] == [("another", "128x128"), ("tiny", "256x256")]
