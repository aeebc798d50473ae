"""Unpack a load of pack.py into an engine environment: `python3 bench/gpu/unpack.py LOAD [HOME]`.

Runs on the bench machine under its own Python, with the standard library alone. HOME (default
/opt/framekeeper) becomes a virtual environment that sees first what was unpacked, then Framekeeper in this
checkout, then what the machine's Python has: its torch is used.
"""

from __future__ import annotations

import sys
import sysconfig
import tarfile
import time
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
HOME = Path("/opt/framekeeper")


def main(arguments: list[str]) -> None:
    """Make the environment when there is none, then unpack."""
    load = Path(arguments[0])
    home = Path(arguments[1]) if len(arguments) > 1 else HOME
    began = time.monotonic()
    site = home / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    if not site.is_dir():
        venv.create(home, symlinks=True)
        paths = [PROJECT / "server", sysconfig.get_paths()["purelib"]]
        (site / "zz-framekeeper.pth").write_text("".join(f"{path}\n" for path in paths))
    for name in sorted(load.glob("*.tar.xz")):
        with tarfile.open(name) as archive:
            archive.extractall(site, filter="tar")
    print(f"unpacked {load} into {home} in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
