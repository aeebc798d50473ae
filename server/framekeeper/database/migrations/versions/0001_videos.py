"""Videos, engines, and procrastinate's queue beside them."""

from __future__ import annotations

from importlib import resources

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of the first version."""
    # Comes with procrastinate itself, and is as old as the version that pyproject.toml admits.
    queue = (resources.files("procrastinate.sql") / "schema.sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(queue.replace("%", "%%"))
    op.execute("""
        CREATE TABLE videos (
            id text PRIMARY KEY,
            model text NOT NULL,
            queue text NOT NULL,
            request jsonb NOT NULL,
            state text NOT NULL DEFAULT 'queued'
                CHECK (state IN ('queued', 'in_progress', 'completed', 'failed', 'cancelled')),
            phase text,
            step integer NOT NULL DEFAULT 0,
            steps integer NOT NULL,
            attempt integer NOT NULL DEFAULT 0,
            tries integer NOT NULL DEFAULT 0,
            engine_id text,
            run_id text,
            queue_job_id bigint,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            started_at timestamptz,
            completed_at timestamptz,
            cancel_requested_at timestamptz,
            error_code text,
            error_message text,
            video_file text,
            thumbnail_file text,
            bytes bigint,
            facts jsonb,
            CHECK ((state = 'failed') = (error_code IS NOT NULL)),
            CHECK (state <> 'completed' OR video_file IS NOT NULL)
        )
    """)
    op.execute("CREATE INDEX videos_newest ON videos (created_at DESC, id DESC)")
    op.execute("CREATE INDEX videos_open ON videos (state) WHERE state IN ('queued', 'in_progress')")
    op.execute("""
        CREATE TABLE engines (
            id text PRIMARY KEY,
            host text NOT NULL,
            run_id text NOT NULL,
            model text NOT NULL,
            profile text NOT NULL,
            runtime text NOT NULL,
            state text NOT NULL,
            phase text,
            detail text,
            admits jsonb NOT NULL,
            defaults jsonb NOT NULL,
            restarts integer NOT NULL DEFAULT 0,
            facts jsonb,
            started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            phase_since timestamptz NOT NULL DEFAULT clock_timestamp(),
            ready_at timestamptz,
            heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp()
        )
    """)


def downgrade() -> None:
    """Not offered: going back would lose jobs."""
    raise NotImplementedError("restore a backup instead")
