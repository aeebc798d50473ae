"""Stands in for the supervisor or the gateway: answers their health paths, or misbehaves as it is told.

Arguments: name, port, then words: `stubborn` ignores SIGTERM, `family` leaves a grandchild in its own
session, `tidy` one that outlives it by a second and then removes the file `var/unfinished`, `dies` ends at
once with status 7, `refuses` ends with status 2.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from framekeeper.engine.parent_death import die_with_parent
from framekeeper.launcher.child import DIE_WITH


class Answers(BaseHTTPRequestHandler):
    """Always ready."""

    def do_GET(self) -> None:
        engine = {"id": "host/0", "state": "ready", "phase": None, "seconds": 1.0, "detail": None}
        body = json.dumps({"status": "ready", "engines": [engine]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(name: str, port: int, *words: str) -> None:
    print(f"{name} says hello", file=sys.stderr, flush=True)
    if "dies" in words:
        print("something is broken", file=sys.stderr)
        sys.exit(7)
    if "refuses" in words:
        print("FRAMEKEEPER_MODEL: no such model", file=sys.stderr)
        sys.exit(2)
    if "family" in words:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(sleep, start_new_session=True)
    if "tidy" in words:
        file = Path(os.environ["FRAMEKEEPER_VAR"]) / "unfinished"
        file.touch()
        read_end, _ = os.pipe()  # the other end closes with this process
        clean = f"import os, time; os.read({read_end}, 1); time.sleep(1); os.remove({str(file)!r})"
        subprocess.Popen([sys.executable, "-c", clean], start_new_session=True, pass_fds=[read_end])
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in words else lambda *_: sys.exit(0))
    server = HTTPServer(("127.0.0.1", port), Answers)
    server.timeout = 0.1
    while True:
        server.handle_request()
        time.sleep(0)


if __name__ == "__main__":
    if DIE_WITH in os.environ:
        die_with_parent(int(os.environ.pop(DIE_WITH)))
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
