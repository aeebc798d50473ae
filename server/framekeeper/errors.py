"""The closed set of errors that a client can meet, over HTTP or in a failed job.

The class docstring is the default message, so that class, text and documentation cannot drift apart. Each
class carries its HTTP status, the word used in logs, metrics and `error.code`, OpenAI's error type, and what
to do about it.
"""

from __future__ import annotations

import inspect
from typing import ClassVar


class FramekeeperError(Exception):
    """Something went wrong inside Framekeeper."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    advice: ClassVar[str] = "Look for this request's id in the gateway's log."

    def __init__(
        self, message: str | None = None, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or "").splitlines()[0]
        self.param = param
        self.retry_after = retry_after
        super().__init__(self.message)


class InvalidRequest(FramekeeperError):
    """The request has a value that cannot be used."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"
    advice = "Change the named field as the message says."


class MissingKey(FramekeeperError):
    """This service takes requests with an API key only, and there was none."""

    status = 401
    code = "missing_key"
    type = "invalid_request_error"
    advice = "Send the header `Authorization: Bearer fk_…`; `framekeeper keys create NAME` makes a key."


class InvalidKey(FramekeeperError):
    """The API key is not known here, or it was revoked."""

    status = 401
    code = "invalid_key"
    type = "invalid_request_error"
    advice = (
        "Use a key that `framekeeper keys create` printed; `framekeeper keys list` shows which are valid."
    )


class ScopeMissing(FramekeeperError):
    """The API key is not good for this."""

    status = 403
    code = "scope_missing"
    type = "invalid_request_error"
    advice = "Use a key with the scope that the message names: `framekeeper keys create NAME --scope …`."


class PriorityNotAllowed(FramekeeperError):
    """The API key may not use this priority."""

    status = 403
    code = "priority_not_allowed"
    type = "invalid_request_error"
    advice = "Leave `priority` out, or use a key that was made with a higher `--priority`."


class CrossOrigin(FramekeeperError):
    """A web page of another origin sent this request; only pages of this service may change anything."""

    status = 403
    code = "cross_origin"
    type = "invalid_request_error"
    advice = "Call the service from a program, or from the page that it serves itself."


class HostNotAllowed(FramekeeperError):
    """This service asks for no key, so it answers only to names that no stranger can own."""

    status = 421
    code = "host_not_allowed"
    type = "invalid_request_error"
    advice = "Use its address or `localhost`, or add the name to FRAMEKEEPER_ALLOWED_HOSTS."


class QueueFull(FramekeeperError):
    """So many jobs wait for this model that no more are accepted at present."""

    status = 429
    code = "queue_full"
    type = "invalid_request_error"
    advice = "Repeat the request after Retry-After seconds; it is estimated from measured seconds."


class RateLimited(FramekeeperError):
    """This API key submits faster than it may."""

    status = 429
    code = "rate_limited"
    type = "invalid_request_error"
    advice = "Repeat the request after Retry-After seconds."


class TooManyJobs(FramekeeperError):
    """This API key has as many unfinished jobs as it may."""

    status = 429
    code = "too_many_jobs"
    type = "invalid_request_error"
    advice = "Wait until a job ends, or cancel one that is not needed."


class VideoNotFound(FramekeeperError):
    """There is no video with this id."""

    status = 404
    code = "video_not_found"
    type = "invalid_request_error"
    advice = "Use an id that POST /v1/videos returned; deleted videos are gone for good."


class ModelNotFound(FramekeeperError):
    """No engine serves this model."""

    status = 404
    code = "model_not_found"
    type = "invalid_request_error"
    advice = "GET /v1/models lists what is served."


class IdempotencyKeyReused(FramekeeperError):
    """The Idempotency-Key was used before with another body."""

    status = 409
    code = "idempotency_key_reused"
    type = "invalid_request_error"
    advice = "Use a new key for a new request, and the same body for a repeated one."


class VideoDeleted(FramekeeperError):
    """The video that this Idempotency-Key has made was deleted since, and is not made a second time."""

    status = 410
    code = "video_deleted"
    type = "invalid_request_error"
    advice = "Use a new key where another video is wanted."


class VideoNotFinished(FramekeeperError):
    """The video is not finished, so it has no content yet."""

    status = 409
    code = "video_not_finished"
    type = "invalid_request_error"
    advice = "Poll GET /v1/videos/{id} until its status is completed."


class VideoAlreadyFinished(FramekeeperError):
    """The video has reached its final state, so it cannot be cancelled."""

    status = 409
    code = "video_already_finished"
    type = "invalid_request_error"
    advice = "Delete it if it is not wanted."


class ContentLost(FramekeeperError):
    """The video was completed, but its file is gone from the media directory."""

    status = 410
    code = "content_lost"
    type = "invalid_request_error"
    advice = "Submit the job again."


class VideoExpired(FramekeeperError):
    """The video was completed, but its time or its owner's space was over, so its files were removed."""

    status = 410
    code = "video_expired"
    type = "invalid_request_error"
    advice = "Submit the job again with the same seed, and fetch the content before expires_at."


class NoEngine(FramekeeperError):
    """No engine has registered yet, so it is not known what can be made."""

    status = 503
    code = "no_engine"
    advice = "Start a supervisor; GET /health/startup shows how far it is."


class DatabaseUnavailable(FramekeeperError):
    """The database does not answer, so nothing can be accepted or looked up right now."""

    status = 503
    code = "database_unavailable"
    advice = "Jobs that were accepted are kept; repeat the request after Retry-After seconds."


class StorageFull(FramekeeperError):
    """The media directory has too little free space for another video."""

    status = 507
    code = "storage_full"
    advice = "Free space in the media directory, or delete videos."


class DeadlineExceeded(FramekeeperError):
    """The video was not completed by its deadline, so its making was stopped."""

    code = "deadline_exceeded"
    advice = "Set a later deadline; estimated_seconds says how long a video will take."


class StillBeingMade(FramekeeperError):
    """The video is still being made after the longest time that this request may wait."""

    status = 504
    code = "still_being_made"
    advice = "It goes on: poll GET /v1/videos/{id}, whose id is in X-Video-Id."


class NotServed(FramekeeperError):
    """No engine has served this model for as long as a video waits for one."""

    code = "not_served"
    advice = "Submit it again once GET /v1/engines has one of this model that serves."


class EngineFailed(FramekeeperError):
    """The engine failed while it made this video."""

    code = "engine_failed"
    advice = "The engine was restarted; submit the job again, and read the engine's log if it fails again."


class FramesInvalid(FramekeeperError):
    """The engine produced frames that are not a picture: not finite, constant or black."""

    code = "frames_invalid"
    advice = "Check weights and quantisation; the engine is warmed up anew before the next job."


class StorageFailed(FramekeeperError):
    """The finished video could not be written to the media directory."""

    code = "storage_failed"
    advice = "Free space in the media directory, then submit the job again."


class RequestRefusedByEngine(FramekeeperError):
    """The engine refused the request."""

    status = 400
    code = "refused_by_engine"
    type = "invalid_request_error"
    advice = "Change the request as the message says."
