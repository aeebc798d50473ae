"""`python -m soak` (with `tests` on the path): a soak of ten minutes, its figures, and its violations."""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
from pathlib import Path

from soak.run import Soak
from system import PROJECT


def main() -> int:
    """Run, print, append to bench/results/soak.jsonl; 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long faults and clients act")
    parser.add_argument("--seed", type=int, default=None, help="repeats the plan and the dice of a run")
    parser.add_argument("--keep", action="store_true", help="keep the directory with logs and database")
    parser.add_argument("--no-record", action="store_true", help="do not write to bench/results/soak.jsonl")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    # Not a private directory: root's PostgreSQL runs as another account.
    home = Path(tempfile.mkdtemp(prefix="framekeeper-soak-"))
    home.chmod(0o711)
    print(f"seed {seed}, {options.seconds:g} s, {home}", flush=True)
    report = Soak(home, seconds=options.seconds, seed=seed).run()
    report.show()
    if not options.no_record:
        report.append(PROJECT / "bench" / "results" / "soak.jsonl")
    if report.problems or options.keep:
        print(f"kept: {home}; repeat with --seed {seed}")
    else:
        shutil.rmtree(home)
    return 1 if report.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
