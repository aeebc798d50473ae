"""Record the digests of the base images in the Dockerfiles and compose.yaml. Needs docker with buildx.

    python docker/digests.py

Each `name:tag` becomes `name:tag@sha256:…` as the registry answers now; run it again to renew them. Nothing
is written unless every image was resolved: 1 then, 0 when all is written.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
FILES = [*sorted((PROJECT / "docker").glob("*.Dockerfile")), PROJECT / "compose.yaml"]
PLACE = re.compile(
    r"^(?P<before>ARG [A-Z0-9_]+_IMAGE=|    image: )"
    r"(?P<name>[a-z0-9./-]+:[A-Za-z0-9._-]+)(?P<digest>@sha256:[0-9a-f]{64})?$",
    re.M,
)
#: A registry has so long for each image.
SECONDS = 60


class Unresolved(Exception):
    """The registry did not say what an image is."""


def resolve(name: str) -> str:
    """The digest of an image's index, `sha256:…`. Raises Unresolved."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except OSError as error:
        raise Unresolved(f"docker cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise Unresolved(f"{name}: no answer within {SECONDS} s") from None
    digest = done.stdout.strip()
    if done.returncode != 0 or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise Unresolved(f"{name}: {done.stderr.strip() or digest or 'no answer'}")
    return digest


def main() -> int:
    """Exit status as in the module's docstring."""
    texts = {path: path.read_text() for path in FILES}
    names = sorted({match["name"] for text in texts.values() for match in PLACE.finditer(text)})
    try:
        digests = {name: resolve(name) for name in names}
    except Unresolved as reason:
        sys.stderr.write(f"nothing was changed: {reason}\n")
        return 1
    for path, text in texts.items():
        path.write_text(PLACE.sub(lambda at: f"{at['before']}{at['name']}@{digests[at['name']]}", text))
    sys.stdout.write("".join(f"{name}@{digest}\n" for name, digest in digests.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
