"""The lines that a system which is ready prints, to paste into a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from framekeeper.launcher.run import _invitation
from framekeeper.profiles.load import load_profile
from framekeeper.settings import Settings

PROFILES = Path(__file__).parents[2] / "configs" / "profiles"


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("cpu-tiny", '{"model": "wan2.2-t2v-tiny", "prompt": "a cat walks on the grass"}'),
        ("cpu-tiny-ti2v", '{"model": "wan2.2-ti2v-tiny", "prompt": "a cat walks on the grass"}'),
        ("cpu-tiny-i2v", "-F model=wan2.2-i2v-tiny -F prompt='a cat walks on the grass'"),
    ],
)
def test_the_line_to_paste_sends_a_picture_where_the_model_needs_one(name: str, sent: str) -> None:
    text = _invitation(Settings(), load_profile(name, PROFILES))
    assert sent in text
    assert ("-F input_reference=@picture.jpg" in text) == ("i2v" in name and "ti2v" not in name)
