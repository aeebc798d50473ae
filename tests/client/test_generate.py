"""`framekeeper generate` and `framekeeper jobs` as a person uses them: real processes, a real service."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from framekeeper.media.encode import read_video
from system import System, free_port, wait_for

pytestmark = pytest.mark.slow
LONG = ("--steps", "50", "--frames", "9")


def framekeeper(*arguments: object, **more: Any) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FRAMEKEEPER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "framekeeper", *map(str, arguments)],
        stdout=more.pop("stdout", subprocess.PIPE),
        stderr=more.pop("stderr", subprocess.PIPE),
        text=True,
        env=environment | more.pop("env", {}),
        **more,
    )


def run(*arguments: object, **more: Any) -> tuple[int, str, str]:
    process = framekeeper(*arguments, **more)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def listed(service: System) -> list[dict[str, Any]]:
    return list(httpx.get(f"{service.urls[0]}/v1/videos?limit=100").json()["data"])


def job_of(service: System, prompt: str) -> dict[str, Any] | None:
    return next((job for job in listed(service) if job["prompt"] == prompt), None)


def begun(service: System, prompt: str) -> dict[str, Any]:
    def working() -> dict[str, Any] | None:
        job = job_of(service, prompt)
        return job if job and job["step"] >= 2 else None

    job: dict[str, Any] = wait_for("the job runs", working, 30)
    return job


def test_prompt_becomes_a_file_and_one_line_is_printed(service: System, tmp_path: Path) -> None:
    target = tmp_path / "out.mp4"
    status, out, err = run(
        "generate", "a cat", "-o", target, "--url", service.urls[0], "--frames", 13, "--seed", 7,
        "--negative-prompt", "rain", "--size", "96x64",
    )  # fmt: skip
    assert (status, out, err) == (0, f"{target}\n", "")
    assert read_video(target).shape == (13, 64, 96, 3)
    job = job_of(service, "a cat")
    assert job is not None
    assert (job["seed"], job["negative_prompt"], job["num_frames"]) == (7, "rain", 13)
    assert list(tmp_path.iterdir()) == [target]


def test_terminal_shows_steps_and_the_path_goes_to_standard_output(service: System, tmp_path: Path) -> None:
    target = tmp_path / "out.mp4"
    theirs, ours = pty.openpty()
    arguments = ("generate", "a bar", "-o", target, "--url", service.urls[0], *LONG)
    process = framekeeper(*arguments, stderr=ours)
    os.close(ours)
    seen = b""
    try:
        while piece := os.read(theirs, 4096):
            seen += piece
    except OSError:
        pass  # a terminal whose last writer is gone
    os.close(theirs)
    assert process.stdout is not None
    assert process.stdout.read() == f"{target}\n"
    assert process.wait(30) == 0
    assert re.search(rb"Step \d+ of 50", seen)


def test_interrupt_cancels_the_job_and_leaves_no_file(service: System, tmp_path: Path) -> None:
    target = tmp_path / "out.mp4"
    process = framekeeper("generate", "to be cancelled", "-o", target, "--url", service.urls[0], *LONG)
    job = begun(service, "to be cancelled")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
    assert f"Cancelled {job['id']}." in err
    assert "Traceback" not in err
    wait_for("it is cancelled", lambda: job_of(service, "to be cancelled")["status"] == "cancelled", 20)  # type: ignore[index]
    assert list(tmp_path.iterdir()) == []


def test_second_interrupt_leaves_at_once(tmp_path: Path) -> None:
    """A service that accepts a job and then answers nothing more."""

    watched, asked = threading.Event(), threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            if self.path == "/v1/videos":
                self.answer({"id": "video_1", "status": "queued", "progress": 0})
            else:
                asked.set()
                time.sleep(60)

        def do_GET(self) -> None:
            watched.set()
            if self.path.endswith("/events"):
                self.send_error(404)
            else:
                self.answer({"id": "video_1", "status": "queued", "progress": 0, "data": []})

        def answer(self, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    process = framekeeper(
        "generate", "x", "-o", tmp_path / "x.mp4", "--url", f"http://127.0.0.1:{server.server_port}"
    )
    assert watched.wait(30)
    process.send_signal(signal.SIGINT)
    assert asked.wait(10)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 8
    assert process.returncode == 1
    assert "framekeeper jobs cancel video_1" in err
    assert list(tmp_path.iterdir()) == []
    server.shutdown()


def test_gateway_that_is_killed_and_comes_back_costs_nothing(service: System, tmp_path: Path) -> None:
    target = tmp_path / "out.mp4"
    process = framekeeper(
        "generate", "through a restart", "-o", target, "--url", service.urls[0], "--steps", 40
    )
    begun(service, "through a restart")
    service.stop_gateways(signal.SIGKILL)
    time.sleep(1.5)
    service.start_gateway(int(service.urls[0].rsplit(":", 1)[1]))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, f"{target}\n", "")
    assert read_video(target).shape[0] == 9
    assert len([job for job in listed(service) if job["prompt"] == "through a restart"]) == 1


def test_submission_whose_answer_is_lost_makes_one_job(service: System, tmp_path: Path) -> None:
    """A proxy that takes the answer of the first POST to the grave."""
    lost = []

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.forward(httpx.post(f"{service.urls[0]}{self.path}", content=body, headers=self.kept()))

        def do_GET(self) -> None:
            self.forward(httpx.get(f"{service.urls[0]}{self.path}", headers=self.kept(), timeout=60))

        def kept(self) -> dict[str, str]:
            return {name: value for name, value in self.headers.items() if name.lower() != "host"}

        def forward(self, answer: httpx.Response) -> None:
            if self.command == "POST" and not lost:
                lost.append(answer.json()["id"])
                self.close_connection = True
                return
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["content-type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = tmp_path / "out.mp4"
    url = f"http://127.0.0.1:{server.server_port}"
    assert run("generate", "only once", "-o", target, "--url", url) == (0, f"{target}\n", "")
    assert [job["id"] for job in listed(service) if job["prompt"] == "only once"] == lost
    server.shutdown()


def test_mistakes_are_one_sentence_each(service: System, tmp_path: Path) -> None:
    here = service.urls[0]
    (tmp_path / "key").write_text("two words")
    (tmp_path / "mine.mp4").touch()
    for arguments, status, words in (
        (["x", "--url", f"http://127.0.0.1:{free_port()}"], 1, "Nothing answers at"),
        (["x", "--url", "localhost:8000"], 2, "is no address"),
        (["x", "--url", here, "--steps", 999], 2, "num_inference_steps='999' is more than 50"),
        (["x", "--url", here, "-o", tmp_path / "no" / "x.mp4"], 2, "there is no directory"),
        (["x", "--url", here, "-o", tmp_path / "mine.mp4"], 2, "is there already: name another"),
        (["x", "--url", here, "--key-file", tmp_path / "none"], 2, "cannot be read"),
        (["x", "--url", here, "--key-file", tmp_path / "key"], 2, "holds no key"),
        (["x", "--url", f"{here}/docs"], 2, "Check --url"),
    ):
        got, out, err = run("generate", *arguments, cwd=tmp_path)
        assert (got, out) == (status, ""), err
        assert words in err
        assert len(err.splitlines()) == 1
    assert job_of(service, "x") is None


def test_jobs_are_listed_shown_downloaded_and_deleted(service: System, tmp_path: Path) -> None:
    where = ("--url", service.urls[0])
    assert run("generate", "a kept job", "-o", tmp_path / "a.mp4", *where)[0] == 0
    status, out, _ = run("jobs", "list", *where)
    assert status == 0
    line = next(line for line in out.splitlines() if "a kept job" in line)
    assert "Completed" in line
    video_id = line.split()[0]
    assert json.loads(run("jobs", "show", video_id, "--json", *where)[1])["id"] == video_id
    shown = run("jobs", "show", video_id, *where)[1]
    assert "a kept job" in shown
    assert re.search(r"^created_at +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", shown, re.MULTILINE)
    assert re.search(r"^cancel_requested +no$", shown, re.MULTILINE)
    assert run("jobs", "watch", video_id, *where)[:2] == (0, f"{video_id} is completed\n")
    assert run("jobs", "download", video_id, "-o", tmp_path / "b.mp4", *where)[0] == 0
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "a.mp4").read_bytes()
    (tmp_path / "b.mp4").write_text("somebody's")
    status, out, err = run("jobs", "download", video_id, "-o", tmp_path / "b.mp4", *where)
    told = f"{tmp_path / 'b.mp4'} is there already: name another file with -o, or add --force.\n"
    assert (status, out, err) == (2, "", told)
    assert (tmp_path / "b.mp4").read_text() == "somebody's"
    assert run("jobs", "download", video_id, "-o", tmp_path / "b.mp4", "--force", *where)[0] == 0
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "a.mp4").read_bytes()
    status, _, err = run("jobs", "cancel", video_id, *where)
    assert (status, "already completed" in err) == (1, True)
    assert run("jobs", "delete", video_id, *where)[0] == 0
    status, _, err = run("jobs", "show", video_id, *where)
    assert (status, "There is no video" in err) == (1, True)


def test_wrong_key_is_told_and_a_right_one_works(service: System, tmp_path: Path) -> None:
    url = service.start_gateway(auth="on")
    status, _, err = run("generate", "x", "-o", tmp_path / "x.mp4", "--url", url)
    assert (status, "FRAMEKEEPER_API_KEY" in err, len(err.splitlines())) == (2, True, 1)
    status, _, err = run("jobs", "list", "--url", url, env={"FRAMEKEEPER_API_KEY": "fk_" + "0" * 43})
    assert (status, "not known here" in err) == (2, True)
    made = subprocess.run(
        [sys.executable, "-m", "framekeeper", "keys", "create", "test"],
        env=service.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    key = re.search(r"fk_[\w-]+", made.stdout)
    assert key is not None
    (tmp_path / "key").write_text(f"{key[0]}\n")
    status, out, err = run(
        "generate", "mine", "-o", tmp_path / "x.mp4", "--url", url, "--key-file", tmp_path / "key"
    )
    assert (status, out) == (0, f"{tmp_path / 'x.mp4'}\n"), err
