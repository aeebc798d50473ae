"""A card's memory, split; the texts are nvidia-smi's on an H200, driver 580.159.04, a process of 4 GiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from framekeeper.engine import card_memory, devices
from framekeeper.engine.card_memory import CardMemory

CARD = "GPU-f18f42dc-7d06-12ad-1a65-114100ce94c0"
CARDS = f"{CARD}, 143771, 4623\n"
HOLDERS = f"{CARD}, 431, python3, 4614\n"
MIB = 1024**2


def split(ours: set[int], reported: dict[str, int], holders: str = HOLDERS) -> CardMemory:
    (found,) = card_memory.share(card_memory.parse(CARDS), devices.parse(holders, {CARD}), ours, reported)
    assert found.engines + found.others == 4623 * MIB
    assert (found.device, found.total) == (CARD, 143771 * MIB)
    return found


def test_our_process_is_ours_and_the_rest_is_the_drivers() -> None:
    assert split({431}, {}).others == 9 * MIB


def test_a_stranger_holds_what_no_process_of_ours_does() -> None:
    assert split({7}, {}).engines == 0


def test_in_a_container_that_sees_other_ids_our_allocators_word_counts() -> None:
    assert split({7}, {CARD: 4096 * MIB}).engines == 4096 * MIB
    assert split(set(), {CARD: 4096 * MIB}, holders="").engines == 4096 * MIB


def test_an_allocator_that_claims_more_than_is_used_leaves_no_negative_stranger() -> None:
    assert split(set(), {CARD: 10**15}).others == 0


def test_a_process_whose_memory_the_driver_does_not_know_falls_back_to_our_word() -> None:
    assert split({431}, {CARD: 100 * MIB}, holders=f"{CARD}, 431, python3, [N/A]\n").engines == 100 * MIB


@pytest.mark.parametrize("line", ["", "No devices were found", f"{CARD}, [Unknown Error], 3", f"{CARD}, 1"])
def test_a_card_that_tells_no_figures_is_left_out(line: str) -> None:
    assert card_memory.parse(line + "\n" + CARDS) == card_memory.parse(CARDS)


def test_without_a_driver_there_are_no_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert card_memory.read({1}, {}) == []
