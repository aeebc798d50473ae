"""`framekeeper generate` and `framekeeper jobs`."""

# Imports stand in the commands, so that each command of the command line loads only what it needs.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

if TYPE_CHECKING:
    from framekeeper.client.service import Service

jobs_app = typer.Typer(
    help="Videos of a service: list, show, cancel, delete, download, watch.", no_args_is_help=True
)

Url = Annotated[str, typer.Option("--url", envvar="FRAMEKEEPER_URL", help="Address of the service.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the API key; otherwise FRAMEKEEPER_API_KEY, where keys are used."),
]
PatienceSeconds = Annotated[
    float, typer.Option(min=0, help="How long a service that stopped answering is tried again, in seconds.")
]
VideoId = Annotated[str, typer.Argument(help="The id, video_…")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write; default: ID.mp4.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LOCAL = "http://127.0.0.1:8000"
#: Bytes of a picture; media/picture.py has the service's own bound, and would load Pillow.
MOST_PICTURE = 10 * 1024 * 1024


@contextmanager
def _service(url: str, key_file: Path | None, patience: float = 300) -> Iterator[Service]:
    """The service; an error of it is a line on standard error and the exit status."""
    from framekeeper.client.service import ClientError, Service

    try:
        service = Service(url, _key(key_file), patience)
        try:
            yield service
        finally:
            service.close()
    except ClientError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.status) from None
    except KeyboardInterrupt:
        raise typer.Exit(1) from None


def _key(file: Path | None) -> str | None:
    from framekeeper.client.service import ClientError

    key, where = os.environ.get("FRAMEKEEPER_API_KEY", ""), "FRAMEKEEPER_API_KEY"
    if file is not None:
        where = f"--key-file {file}"
        try:
            key = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ClientError(f"{where} cannot be read ({error.strerror}).", 2) from None
        except ValueError:
            raise ClientError(f"{where} is no text: it shall hold the key alone.", 2) from None
    key = key.strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ClientError(f"{where} holds no key: it shall be one word, fk_….", 2)
    return key or None


def generate(
    prompt: Annotated[str, typer.Argument(help="What the video shows.")],
    *,
    output: Output = None,
    force: Force = False,
    url: Url = LOCAL,
    key_file: KeyFile = None,
    model: Annotated[str | None, typer.Option(help="Model, where the service has several.")] = None,
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT in pixels.")] = None,
    seconds: Annotated[str | None, typer.Option(help="Length in seconds.")] = None,
    frames: Annotated[int | None, typer.Option(help="Length in frames, 4k+1.")] = None,
    fps: Annotated[int | None, typer.Option(help="Frames a second.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.")] = None,
    guidance: Annotated[float | None, typer.Option(help="Guidance scale.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed makes the same video.")] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="What it must not show.")] = None,
    image: Annotated[Path | None, typer.Option(help="First picture, for models that take one.")] = None,
    priority: Annotated[str | None, typer.Option(help="low, normal or high.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    patience: PatienceSeconds = 300,
) -> None:
    """Make a video and write it to a file; prints the file's name. Ctrl-C cancels."""
    from framekeeper.client.content import require_place
    from framekeeper.client.display import Display
    from framekeeper.client.generate import generate as make

    given = {
        "prompt": prompt, "model": model, "size": size, "seconds": seconds, "num_frames": frames, "fps": fps,
        "num_inference_steps": steps, "guidance_scale": guidance, "seed": seed,
        "negative_prompt": negative_prompt, "priority": priority,
    }  # fmt: skip
    fields = {name: str(value) for name, value in given.items() if value is not None}
    with _service(url, key_file, patience) as service:
        # The default name has an id that is not given yet, and nobody's file has it.
        require_place(output or Path(f"{uuid4()}.mp4"), over=force)
        typer.echo(str(make(service, fields, _picture(image), output, Display(quiet=quiet))))


def _picture(image: Path | None) -> tuple[str, bytes] | None:
    from framekeeper.client.service import ClientError

    if image is None:
        return None
    try:
        with image.open("rb") as file:
            data = file.read(MOST_PICTURE + 1)
    except OSError as error:
        raise ClientError(f"--image {image} cannot be read ({error.strerror}).", 2) from None
    if not data:
        raise ClientError(f"--image {image} is empty: give a PNG, JPEG or WebP picture.", 2)
    if len(data) > MOST_PICTURE:
        raise ClientError(
            f"--image {image} has more than 10 MiB, the most that is taken: make it smaller.", 2
        )
    return image.name, data


@jobs_app.command("list")
def list_jobs(
    *,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on behind this id.")] = None,
    as_json: AsJson = False,
    url: Url = LOCAL,
    key_file: KeyFile = None,
) -> None:
    """Videos, the newest first."""
    from framekeeper.client.display import sentence

    with _service(url, key_file) as service:
        page = service.page(limit, after)
        if as_json:
            typer.echo(json.dumps(page["data"], indent=2))
            return
        for job in page["data"]:
            typer.echo(f"{job['id']}  {sentence(job):<16}  {_short(str(job.get('prompt') or ''))}")
        if page.get("has_more"):
            typer.echo(f"More: framekeeper jobs list --after {page['last_id']}", err=True)


@jobs_app.command()
def show(video_id: VideoId, *, as_json: AsJson = False, url: Url = LOCAL, key_file: KeyFile = None) -> None:
    """One video with all that is known of it."""
    with _service(url, key_file) as service:
        job = service.retrieve(video_id)
        if as_json:
            typer.echo(json.dumps(job, indent=2))
            return
        for name, value in job.items():
            if value is not None and name != "object":
                typer.echo(f"{name:<20} {_shown(name, value)}")


@jobs_app.command()
def cancel(video_id: VideoId, *, url: Url = LOCAL, key_file: KeyFile = None) -> None:
    """Stop a video that is not finished."""
    with _service(url, key_file) as service:
        service.cancel(video_id)
        typer.echo(f"{video_id} is cancelled")


@jobs_app.command()
def delete(video_id: VideoId, *, url: Url = LOCAL, key_file: KeyFile = None) -> None:
    """Delete a video and its files."""
    with _service(url, key_file) as service:
        service.delete(video_id)
        typer.echo(f"{video_id} is deleted")


@jobs_app.command()
def download(
    video_id: VideoId,
    *,
    output: Output = None,
    force: Force = False,
    url: Url = LOCAL,
    key_file: KeyFile = None,
) -> None:
    """Fetch the file of a finished video."""
    from framekeeper.client.content import download as fetch
    from framekeeper.client.content import require_place

    target = output or Path(f"{video_id}.mp4")
    with _service(url, key_file) as service:
        require_place(target, over=force)
        service.retrieve(video_id)
        fetch(service, video_id, target)
        typer.echo(str(target))


@jobs_app.command()
def watch(
    video_id: VideoId, *, url: Url = LOCAL, key_file: KeyFile = None, patience: PatienceSeconds = 300
) -> None:
    """Follow a video to its end; Ctrl-C stops watching, not the video."""
    from framekeeper.client.display import Display
    from framekeeper.client.generate import ending
    from framekeeper.client.generate import watch as follow_job
    from framekeeper.client.service import ClientError

    with _service(url, key_file, patience) as service, Display() as display:
        final = follow_job(service, service.retrieve(video_id), display)
        if final["status"] != "completed":
            raise ClientError(ending(final))
        typer.echo(f"{video_id} is completed")


def _shown(name: str, value: object) -> str:
    """A field of a video for a person: an error's sentence, times of this place, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_at") and isinstance(value, int):
        return datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    return str(value.get("message", value) if isinstance(value, dict) else value)


def _short(text: str) -> str:
    line = " ".join(text.split())
    width = max(20, (os.get_terminal_size().columns if sys.stdout.isatty() else 120) - 60)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def register(app: typer.Typer) -> None:
    """Add both to the command line."""
    app.command()(generate)
    app.add_typer(jobs_app, name="jobs")
