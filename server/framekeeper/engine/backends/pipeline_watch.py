"""Watches a Wan2.2 pipeline in this process, diffusers' own or vllm-omni 0.14's, by wrapping its instance.

Both have the same parts: `encode_prompt`, `check_inputs`, `scheduler.set_timesteps`, two transformers and
`vae.decode`. No class and no file of theirs is changed. The end of a step is where the two differ; the
backend calls `finish_step` there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from framekeeper.engine.backends.backend import RequestRefused
from framekeeper.engine.backends.recorder import Recorder
from framekeeper.engine.backends.refusals import refuse_repeated


class PipelineWatch:
    """Tells `recorder` what the pipeline does; while that is None (a dummy run) it tells nobody.

    `schedule` are further keyword arguments of `scheduler.set_timesteps`.
    """

    def __init__(self, pipeline: Any) -> None:
        self.recorder: Recorder | None = None
        self.schedule: dict[str, Any] = {}
        self._scheduler = pipeline.scheduler
        _wrap(pipeline, "encode_prompt", self._encode_prompt)
        _wrap(pipeline, "check_inputs", _check_inputs)
        _wrap(pipeline.scheduler, "set_timesteps", self._set_timesteps)
        _wrap(pipeline.vae, "decode", self._decode)
        for expert, transformer in enumerate((pipeline.transformer, pipeline.transformer_2)):
            if transformer is not None:
                transformer.register_forward_pre_hook(functools.partial(self._run_expert, expert))

    def follow(self, other: Any) -> None:
        """Watch a second pipeline of the same scheduler, transformers and autoencoder."""
        _wrap(other, "encode_prompt", self._encode_prompt)
        _wrap(other, "check_inputs", _check_inputs)

    def finish_step(self) -> None:
        """A denoising step has been queued; raises what `Recorder.finish_step` raises."""
        if self.recorder is not None:
            self.recorder.finish_step()

    def _encode_prompt(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.recorder is not None:
            self.recorder.enter("text_encoding")
        return original(*args, **kwargs)

    def _set_timesteps(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs, **self.schedule)
        timesteps = self._scheduler.timesteps.tolist()
        refuse_repeated(timesteps)
        if self.recorder is not None:
            self.recorder.enter("denoising")
            self.recorder.begin_steps(len(timesteps))

    def _run_expert(self, expert: int, _module: Any, _args: Any) -> None:
        if self.recorder is not None:
            self.recorder.used(expert)

    def _decode(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.recorder is not None:
            self.recorder.enter("decoding")
        return original(*args, **kwargs)


def _check_inputs(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Both libraries raise a plain ValueError here, which would look like a failure of the engine."""
    try:
        original(*args, **kwargs)
    except ValueError as error:
        raise RequestRefused(str(error)) from error


def _wrap(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(functools.partial(replacement, original)))
