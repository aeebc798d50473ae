"""A client of the Videos API, the same for Framekeeper and for vllm-omni's own server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx

#: How often a waiting client asks, in seconds: half of it is in every POST → completed, on average.
POLL_SECONDS = 0.02
REQUEST_SECONDS = 30.0
UNFINISHED = ("queued", "in_progress")

#: Everything is said, so that both servers do the same work.
SMALL: dict[str, Any] = {
    "prompt": "a cat walks on the grass",
    "size": "64x64",
    "num_frames": 9,
    "fps": 8,
    "num_inference_steps": 6,
    "guidance_scale": 4.0,
    "guidance_scale_2": 3.0,
    "boundary_ratio": 0.875,
    "flow_shift": 5.0,
    "seed": 7,
}
#: The largest that the profile cpu-tiny admits: some seconds on two cores.
LARGE: dict[str, Any] = SMALL | {"size": "128x128", "num_frames": 49, "num_inference_steps": 50}


class Videos:
    """One keep-alive connection to a server; not for several threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=REQUEST_SECONDS, trust_env=False)

    def __enter__(self) -> Videos:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def create(self, fields: Mapping[str, Any]) -> str:
        """Submit a job; returns its id. A form, because both servers read one."""
        answer = self._client.post("/v1/videos", data=dict(fields))
        answer.raise_for_status()
        return str(answer.json()["id"])

    def get(self, video_id: str) -> dict[str, Any]:
        """How a job is. Upstream answers a failed one with 500 and the job in the body."""
        answer = self._client.get(f"/v1/videos/{video_id}")
        body: dict[str, Any] = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        if "status" not in body:
            answer.raise_for_status()
        return body

    def engine_versions(self) -> dict[str, str]:
        """Framekeeper only: versions of torch and vllm-omni, as the engine found them."""
        (engine,) = self._client.get("/v1/engines").raise_for_status().json()["data"]
        return dict(engine["facts"]["load"]["versions"])

    def content(self, video_id: str) -> bytes:
        """The MP4."""
        answer = self._client.get(f"/v1/videos/{video_id}/content")
        answer.raise_for_status()
        return answer.content

    def delete(self, video_id: str) -> None:
        """Forget a job; one that is gone already is fine."""
        answer = self._client.delete(f"/v1/videos/{video_id}")
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()

    def status_code(self, path: str) -> int:
        """The HTTP status of a path; 0 when nobody answers."""
        try:
            return self._client.get(path, timeout=2).status_code
        except httpx.HTTPError:
            return 0

    def wait(self, video_id: str, seconds: float = 120) -> dict[str, Any]:
        """Ask until the job has ended. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (video := self.get(video_id))["status"] in UNFINISHED:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job is still {video['status']} after {seconds:g} s")
            time.sleep(POLL_SECONDS)
        return video

    def completed(self, video_id: str, seconds: float = 120) -> dict[str, Any]:
        """Like `wait`, for a job that has to succeed."""
        video = self.wait(video_id, seconds)
        if video["status"] != "completed":
            raise RuntimeError(f"the job is {video['status']}: {video.get('error')}")
        return video
