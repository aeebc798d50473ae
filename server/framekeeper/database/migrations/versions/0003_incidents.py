"""Incidents, what an engine learned from them, and how many engines a job has ended."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables and the count."""
    op.execute("ALTER TABLE videos ADD COLUMN engine_deaths integer NOT NULL DEFAULT 0")
    op.execute("ALTER TABLE videos ADD COLUMN incident_id text")
    op.execute("""
        CREATE TABLE incidents (
            id text PRIMARY KEY,
            at timestamptz NOT NULL DEFAULT clock_timestamp(),
            host text NOT NULL,
            engine_id text NOT NULL,
            profile text NOT NULL,
            rung integer NOT NULL,
            phase text NOT NULL,
            video_id text,
            attempt integer,
            signature text NOT NULL,
            record jsonb NOT NULL,
            ready_again_seconds double precision
        )
    """)
    op.execute("CREATE INDEX incidents_newest ON incidents (at DESC, id DESC)")
    op.execute("CREATE INDEX incidents_of_engine ON incidents (engine_id, at DESC)")
    op.execute("""
        CREATE TABLE engine_rungs (
            engine_id text NOT NULL,
            profile text NOT NULL,
            rung integer NOT NULL DEFAULT 0,
            rung_since timestamptz NOT NULL DEFAULT clock_timestamp(),
            admit_limit jsonb,
            reason text,
            reset_at timestamptz,
            PRIMARY KEY (engine_id, profile)
        )
    """)


def downgrade() -> None:
    """Not offered: going back would lose jobs."""
    raise NotImplementedError("restore a backup instead")
