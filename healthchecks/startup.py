"""Whether the first engine is ready; says how far it is. Usage: python startup.py [URL]."""

from __future__ import annotations

import sys

from probe import main

if __name__ == "__main__":
    sys.exit(main("/health/startup"))
