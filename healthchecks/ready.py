"""Whether a video could be made now. Usage: python ready.py [URL]."""

from __future__ import annotations

import sys

from probe import main

if __name__ == "__main__":
    sys.exit(main("/health/ready"))
