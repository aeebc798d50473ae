"""What a start finds in the compile caches, and what it adds to them."""

from __future__ import annotations

from pathlib import Path

from framekeeper.engine import compile_cache


def write(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("code")
    return str(path)


def test_files_of_inductor_and_triton_count_and_nothing_else(tmp_path: Path) -> None:
    kept = {write(tmp_path / "inductor/fxgraph/ab/abc"), write(tmp_path / "triton/0/kernel.cubin")}
    write(tmp_path / "vllm/config.json")
    write(tmp_path / "xdg/notes")
    assert compile_cache.files(tmp_path) == kept


def test_what_was_made_since_is_the_difference(tmp_path: Path) -> None:
    write(tmp_path / "inductor/a")
    before = compile_cache.files(tmp_path)
    made = write(tmp_path / "inductor/b")
    assert compile_cache.files(tmp_path) - before == {made}


def test_where_nothing_was_ever_compiled_there_is_nothing(tmp_path: Path) -> None:
    assert compile_cache.files(tmp_path / "missing") == frozenset()
