"""What is measured on a card, as data: every section with its estimate, value, needs and prediction.

    python bench/gpu/plan.py                        # the order for 1,700 s, and what is left out
    python bench/gpu/plan.py --budget 600 --sections h200 pinned
    python bench/gpu/plan.py --document docs/verified.md     # renew its table "not run"

Standard library alone: the bench machine reads it before anything is unpacked. Whether a section has run is
read from `bench/results/gpu.jsonl`, so that the document cannot say otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent.parent
RESULTS = PROJECT / "bench" / "results" / "gpu.jsonl"

#: Seconds for everything by default: of half an hour some are for the machine's start and the copying.
BUDGET = 1700
#: Unpacking both loads, the checkpoint, touching the host's memory.
SETUP_SECONDS = 130
#: A section that takes this much longer than its estimate is ended, so that it costs only itself.
PATIENCE = 1.6

BEGIN = "<!-- not run: written by python bench/gpu/plan.py --document docs/verified.md -->"
END = "<!-- end of not run -->"


@dataclass(frozen=True, kw_only=True)
class Section:
    """One run that ends by itself. `command` is for a shell there; see `all.py` for its variables.

    `proof` holds lists of keys and values: it has run when for each a kept result has all of them. `value` is
    from 1 to 10; `host_gib` and `card_gib` are what must be free.
    """

    name: str
    asks: str
    command: str
    seconds: int
    value: int
    predicts: str
    proof: tuple[dict[str, Any], ...]
    host_gib: int = 16
    card_gib: int = 8

    def limit(self, left: float) -> float:
        """Seconds after which it is ended, with so many left for all."""
        return min(self.seconds * PATIENCE + 30, left)


def _system(*names: str) -> str:
    return f"$PYTHON bench/gpu/run.py --model $MODEL --out $RESULTS {' '.join(names)}"


def _ready(profile: str) -> dict[str, Any]:
    return {"what": "ready", "profile": profile}


def _engine(name: str) -> dict[str, Any]:
    return {"what": "variant", "name": name}


SECTIONS: tuple[Section, ...] = (
    Section(
        name="ceilings",
        asks="what the card does by itself: products, copies, attention, decoding",
        command="$PYTHON bench/gpu/ceilings.py $MODEL $RESULTS",
        seconds=60,
        value=2,
        predicts="809 and 1,488 TFLOP/s in bf16 and fp8, 4.2 TB/s",
        proof=({"what": "products"}, {"what": "copies"}, {"what": "attention"}, {"what": "decoding"}),
        card_gib=30,
    ),
    Section(
        name="limits",
        asks="what bounds a job: products for 20 s, fp8 products as vllm makes them, attention by cuDNN",
        command="$PYTHON bench/gpu/ceilings.py $MODEL $RESULTS products linear attention sustained",
        seconds=60,
        value=10,
        predicts="809 TFLOP/s in a burst and 5 to 10 % less after 20 s, at a lower clock; fp8 products with "
        "a scale a token 1,200 to 1,350; cuDNN's attention within 5 % of FlashAttention 3's",
        proof=({"what": "sustained"}, {"what": "linear"}),
        card_gib=30,
    ),
    Section(
        name="kernels",
        asks="where a step at 1280x720 goes, by kernel: `h200` and `h200-fast`",
        command="bash bench/gpu/engines.sh large-upstream large-h200 large-fast",
        seconds=300,
        value=10,
        predicts="steps of 20.8, 19.95 and 14.4 s; of 14.4 s 10.0 s attention, 2.8 s products",
        proof=tuple({"what": "kernels", "name": f"large-{name}"} for name in ("h200", "fast")),
        card_gib=135,
    ),
    Section(
        name="tuning",
        asks="`h200-fast` compiled at its own shape, rotary embedding too; and with kernels chosen by timing",
        command="bash bench/gpu/engines.sh "
        "large-upstream large-fast-rotary large-fast-tuned large-h200-rotary",
        seconds=386,
        value=10,
        predicts="a step 13.9 s instead of 14.5: rotary embedding 0.16 s less, mean of keys 0.09, GELU and "
        "quantising 0.18, normalisation and quantising 0.2, quantising before the output 0.05",
        proof=tuple({"what": "kernels", "name": f"large-fast-{name}"} for name in ("rotary", "tuned")),
        card_gib=135,
    ),
    Section(
        name="engines-base",
        asks="engines alone: upstream's defaults, `h200`, fp8 linear layers, layerwise offload",
        command="bash bench/gpu/engines.sh engine-upstream engine-h200 engine-fp8-linear engine-layers",
        seconds=330,
        value=3,
        predicts="steps of 5.46, 5.14, 4.31 and 5.46 s at 832x480",
        proof=tuple(_engine(f"engine-{name}") for name in ("upstream", "h200", "fp8-linear", "layers")),
        host_gib=90,
        card_gib=135,
    ),
    Section(
        name="service",
        asks="a life of an engine at 832x480: start, video, cancel, kill",
        command=_system("service"),
        seconds=300,
        value=3,
        predicts="ready in 90 s, steps of 5.1 s, ready again 60 s after the kill",
        proof=(_ready("bench-compiled"), {"what": "video"}, {"what": "cancel"}),
        host_gib=64,
        card_gib=70,
    ),
    Section(
        name="h200-fast",
        asks="`h200-fast` as shipped at 1280x720: two jobs, the gap between them, worker killed",
        command=_system("h200-fast"),
        seconds=380,
        value=4,
        predicts="steps of 14.4 s, 0.19 s between the jobs, ready 93 s after the kill",
        proof=({"what": "pair", "profile": "shipped-h200-fast"}, {"what": "kill"}),
        host_gib=64,
        card_gib=75,
    ),
    Section(
        name="card",
        asks="planted faults of the card: illegal access, kernel that never ends, card full",
        command=_system("card"),
        seconds=60,
        value=2,
        predicts="ready again in 3 to 6 s, no memory left",
        proof=tuple(
            {"what": "card-fault", "how": how} for how in ("illegal_access", "hung_kernel", "out_of_memory")
        ),
        card_gib=12,
    ),
    Section(
        name="h200",
        asks="a job of the shipped `h200` at 1280x720 from POST to MP4, and the second job's gap",
        command=_system("--steps 2 1 h200"),
        seconds=200,
        value=10,
        predicts="ready in 112 s; two steps of 19.95 s, decoding 2.0–2.7 s, completed 45–49 s after the "
        "POST; 0.19 s between the jobs; peak 77.8 GB",
        proof=({"what": "pair", "profile": "shipped-h200"},),
        host_gib=64,
        card_gib=100,
    ),
    Section(
        name="engines",
        asks="`h200-fast` at 832x480, cache-dit, model offload, `sync` at full size, in turn",
        command="ONLY_SMALL=1 bash bench/gpu/engines.sh "
        "engine-upstream engine-fast engine-cache engine-model engine-layers-sync",
        seconds=250,
        value=9,
        predicts="`h200-fast` 3.74 s a step (4.31 less 80 attentions of 7.1 ms); cache-dit no slower than "
        "5.46 s, what it skips is meaningless on random weights; model offload 5.46 s; sync 6.5 s (5.46 and "
        "twice 0.52 s of copies)",
        proof=tuple(_engine(f"engine-{name}") for name in ("fast", "cache", "model", "layers-sync")),
        host_gib=100,
        card_gib=135,
    ),
    Section(
        name="locks",
        asks="device masks and locks: the worker's mask, a second supervisor on the same card",
        command=_system("locks"),
        seconds=30,
        value=4,
        predicts="the worker sees one card by its UUID; the second supervisor ends with 2, naming the holder",
        proof=({"what": "locks"},),
    ),
    Section(
        name="pinned",
        asks="the doctor's probes, that of page-locked host memory among them",
        command=_system("doctor"),
        seconds=90,
        value=5,
        predicts="no fatal finding but the environment's torch; 92 GiB can be page-locked of 126 GiB",
        proof=({"what": "doctor", "profile": "bench-async"},),
        host_gib=110,
        card_gib=100,
    ),
    Section(
        name="oom",
        asks="a real engine on a card that fills up, in a step and before decoding",
        command=_system("oom"),
        seconds=190,
        value=7,
        predicts="incidents `oom_…`, ready 50–60 s after the filler has gone, 0 MiB left, job failed with "
        "the reason or completed as attempt 2",
        proof=(
            {"what": "oom-step", "profile": "bench-eager"},
            {"what": "oom-decode", "profile": "bench-eager"},
        ),
        host_gib=64,
        card_gib=75,
    ),
    Section(
        name="oom-expandable",
        asks="the same with `expandable_segments`",
        command=_system("oom-expandable"),
        seconds=190,
        value=6,
        predicts="as without; whatever differs is the allocator's",
        proof=(
            {"what": "oom-step", "profile": "bench-expandable"},
            {"what": "oom-decode", "profile": "bench-expandable"},
        ),
        host_gib=64,
        card_gib=75,
    ),
    Section(
        name="trace-sync",
        asks="`offload_prefetch: sync` at full size under the profiler: streams of copies and kernels",
        command="$PYTHON bench/gpu/streams.py $MODEL $PROFILES bench-sync $RESULTS 81",
        seconds=170,
        value=5,
        predicts="all copies on the kernels' stream, 0 % beside kernels, 160 blocks of 0.71 GB in two steps",
        proof=({"what": "streams", "profile": "bench-sync", "num_frames": 81},),
        host_gib=110,
        card_gib=30,
    ),
    *(
        Section(
            name=f"card-{gib}",
            asks=f"a card of {gib} GiB (the rest held by a filler): profile `{profile}`",
            command=_system(f"card-{gib}"),
            seconds=seconds,
            value=value,
            predicts="peak within 10 % of `framekeeper profile fit`, no incident",
            proof=({"what": "small-card", "gib": gib},),
            host_gib=64 if gib == 80 else 110,
            card_gib=135,
        )
        for gib, profile, seconds, value in (
            (80, "h100-80g", 150, 6),
            (48, "l40s-48g", 240, 4),
            (32, "rtx5090-32g", 200, 3),
            (24, "rtx4090-24g", 200, 7),
        )
    ),
)

#: What one may look for, and no section can measure, with the reason.
WITHOUT = (
    ("TeaCache", "refused by a rule: vllm-omni 0.30 has no extractor for Wan"),
    (
        "both guidance passes as one batch",
        "no key of a profile does it; `parallel: {cfg: 2}` takes two cards",
    ),
    ("a cache of prompt embeddings", "not built: encoding a prompt takes 0.02 s here, with 2 of 24 layers"),
    ("more than one card, MIG", "one card was lent"),
    ("torch 2.13 of the runtime's lock", "too large to carry: the machine's 2.11 is used"),
    ("real weights", "too large to carry"),
)


def section(name: str) -> Section:
    """By name. Raises ValueError."""
    for each in SECTIONS:
        if each.name == name:
            return each
    raise ValueError(f"no section {name}; there are {', '.join(each.name for each in SECTIONS)}")


def results(file: Path = RESULTS) -> list[dict[str, Any]]:
    """Kept results; those with a note or an error were spoiled by something and prove nothing."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [line for line in lines if not {"note", "error"} & line.keys()]


def has_run(wanted: Section, lines: Iterable[dict[str, Any]]) -> bool:
    """Whether the results hold everything that the section brings."""
    kept = list(lines)
    return all(any(proof.items() <= line_items(line) for line in kept) for proof in wanted.proof)


def line_items(line: dict[str, Any]) -> set[tuple[str, Any]]:
    """The plain values of a result."""
    return {(key, value) for key, value in line.items() if isinstance(value, str | int | float)}


def order(
    sections: Sequence[Section], budget: float, *, named: bool = False
) -> tuple[list[Section], list[Section]]:
    """As many as fit, by value a second, or as they are `named`; and those that do not."""
    taken: list[Section] = []
    left_out: list[Section] = []
    spent = float(SETUP_SECONDS)
    for each in (
        sections if named else sorted(sections, key=lambda one: one.value / one.seconds, reverse=True)
    ):
        if spent + each.seconds <= budget:
            taken.append(each)
            spent += each.seconds
        else:
            left_out.append(each)
    return taken, left_out


def chosen(names: Sequence[str], lines: Sequence[dict[str, Any]]) -> list[Section]:
    """Those that are named; without names all that have not run."""
    return [section(name) for name in names] or [each for each in SECTIONS if not has_run(each, lines)]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """What has not run, for the document."""
    rows = ["| not run | `--sections` | seconds | prediction |", "|---|---|---:|---|"]
    rows += [
        f"| {each.asks} | `{each.name}` | {each.seconds} | {each.predicts} |"
        for each in SECTIONS
        if not has_run(each, lines)
    ]
    return "\n".join([*rows, *(f"| {what} | – | – | {why} |" for what, why in WITHOUT)])


def renewed(text: str, lines: Sequence[dict[str, Any]]) -> str:
    """The document with its table written anew. Raises ValueError where the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the marks {BEGIN!r} and {END!r} are missing")
    return f"{before}{BEGIN}\n{table(lines)}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sections", nargs="+", default=[], choices=[each.name for each in SECTIONS])
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("--document", type=Path)
    options = parser.parse_args(arguments)
    if options.document:
        options.document.write_text(renewed(options.document.read_text(), results()))
        return 0
    taken, left_out = order(chosen(options.sections, results()), options.budget, named=bool(options.sections))
    at = SETUP_SECONDS
    for each in taken:
        needs = f"{each.card_gib} GiB of the card, {each.host_gib} GiB of the host"
        print(f"{at:5d} s  {each.name:15} {each.seconds:4d} s  {each.asks}")
        print(f"{'':9}needs {needs}; expected: {each.predicts}")
        at += each.seconds
    for each in left_out:
        print(f"left out {each.name:13} {each.seconds:4d} s  {each.asks}")
    print(f"{at} s of {options.budget:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
