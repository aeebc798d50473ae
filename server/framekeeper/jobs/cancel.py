"""The owner's wish to stop or to forget a job."""

from __future__ import annotations

from framekeeper.database.pool import Connection, Database
from framekeeper.errors import VideoAlreadyFinished, VideoNotFound
from framekeeper.jobs import deliveries
from framekeeper.jobs.lookup import VISIBLE
from framekeeper.jobs.places import fill_places
from framekeeper.jobs.video import COLUMNS, Video, VideoState


async def request_cancel(database: Database, video_id: str, *, sees: str | None = None) -> Video:
    """Cancel a queued job at once; ask the engine to stop a running one before its next denoising step.

    Asking twice changes nothing. Raises VideoNotFound, VideoAlreadyFinished, DatabaseUnavailable.
    """
    video, _ = await stop(database, video_id, sees=sees)
    return video


async def stop(database: Database, video_id: str, *, sees: str | None = None) -> tuple[Video, bool]:
    """As `request_cancel`; also whether the job came to its end by this very call."""
    async with database.transaction() as connection:
        video = await _locked(connection, video_id, sees)
        if video.state is VideoState.CANCELLED:
            return video, False
        if video.state.final:
            raise VideoAlreadyFinished(
                f"The video {video_id} is already {video.state}, so it cannot be cancelled.", param="video_id"
            )
        stopped = await _stop(database, connection, video)
        return stopped, stopped.state.final


async def delete(database: Database, video_id: str, *, sees: str | None = None) -> Video:
    """Forget a job: it is gone for its owner at once. Returns the job as it was.

    A finished or queued one leaves no row; one in progress is stopped first and its row goes when the engine
    has let go (`settle`). The caller removes the files of a final one. Raises VideoNotFound or
    DatabaseUnavailable.
    """
    async with database.transaction() as connection:
        video = await _locked(connection, video_id, sees)
        if video.state is VideoState.IN_PROGRESS:
            await _stop(database, connection, video)
            await connection.execute(
                "UPDATE videos SET deleted_at = clock_timestamp() WHERE id = %(id)s", {"id": video_id}
            )
        else:
            if video.queue_job_id is not None:
                await database.queue.job_manager.cancel_job_by_id_async(
                    video.queue_job_id, delete_job=True, connection=connection
                )
            await connection.execute("DELETE FROM videos WHERE id = %(id)s", {"id": video_id})
            if video.state is VideoState.QUEUED:
                await fill_places(database, connection, video.owner, video.queue)
        return video


async def _locked(connection: Connection, video_id: str, sees: str | None) -> Video:
    cursor = await connection.execute(
        f"SELECT {COLUMNS} FROM videos WHERE id = %(id)s AND {VISIBLE} FOR UPDATE",
        {"id": video_id, "sees": sees},
    )
    row = await cursor.fetchone()
    if row is None:
        raise VideoNotFound(f"There is no video with the id {video_id!r}.", param="video_id")
    return Video.from_row(row)


async def _stop(database: Database, connection: Connection, video: Video) -> Video:
    if video.queue_job_id is not None:
        # A waiting wake-up is removed: nobody else would ever do that. For a running task this is an abort
        # request, which its supervisor gets as a notification.
        await database.queue.job_manager.cancel_job_by_id_async(
            video.queue_job_id, abort=True, delete_job=True, connection=connection
        )
    change = (
        "state = 'cancelled', completed_at = clock_timestamp(), cancel_requested_at = clock_timestamp()"
        if video.state is VideoState.QUEUED
        else "cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())"
    )
    cursor = await connection.execute(
        f"UPDATE videos SET {change} WHERE id = %(id)s RETURNING {COLUMNS}",
        {"id": video.id},
    )
    row = await cursor.fetchone()
    assert row is not None
    stopped = Video.from_row(row)
    if stopped.state is VideoState.CANCELLED:
        await fill_places(database, connection, video.owner, video.queue)
        await deliveries.enter(connection, stopped)
    return stopped
