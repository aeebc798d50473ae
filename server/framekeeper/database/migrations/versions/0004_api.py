"""Owners, priorities, deadlines, events, idempotency, webhooks, measured durations, retention."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and tables."""
    op.execute("""
        ALTER TABLE videos
            ADD COLUMN owner text,
            ADD COLUMN priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -1 AND 1),
            ADD COLUMN deadline_at timestamptz,
            ADD COLUMN batch_id text,
            ADD COLUMN request_id text,
            ADD COLUMN input_file text,
            ADD COLUMN webhook_url text,
            ADD COLUMN expires_at timestamptz,
            ADD COLUMN estimated_seconds double precision,
            ADD COLUMN version bigint NOT NULL DEFAULT 0
    """)
    op.execute("ALTER TABLE videos DROP CONSTRAINT IF EXISTS videos_state_check")
    op.execute("""
        ALTER TABLE videos ADD CONSTRAINT videos_state_check CHECK
            (state IN ('queued', 'in_progress', 'completed', 'failed', 'cancelled', 'expired'))
    """)
    op.execute("CREATE INDEX videos_of_owner ON videos (owner, created_at DESC, id DESC)")
    op.execute("CREATE INDEX videos_of_batch ON videos (batch_id) WHERE batch_id IS NOT NULL")
    op.execute("""
        CREATE INDEX videos_waiting ON videos (model, priority DESC, created_at) WHERE state = 'queued'
    """)
    # Every change of a row has a number, which is an event's id, and is told to those who listen.
    op.execute("""
        CREATE FUNCTION framekeeper_video_changed() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'DELETE' THEN
                PERFORM pg_notify('framekeeper_videos', OLD.id);
                RETURN OLD;
            END IF;
            NEW.version := OLD.version + 1;
            PERFORM pg_notify('framekeeper_videos', NEW.id);
            RETURN NEW;
        END $$
    """)
    op.execute("""
        CREATE TRIGGER videos_changed BEFORE UPDATE OR DELETE ON videos
            FOR EACH ROW EXECUTE FUNCTION framekeeper_video_changed()
    """)
    op.execute("""
        CREATE TABLE api_keys (
            id text PRIMARY KEY,
            name text NOT NULL UNIQUE,
            hash text NOT NULL UNIQUE,
            scopes text[] NOT NULL,
            limits jsonb NOT NULL DEFAULT '{}',
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            last_used_at timestamptz,
            revoked_at timestamptz
        )
    """)
    # An owner that is not known (no keys are used) is the empty text: NULLs are never equal.
    op.execute("""
        CREATE TABLE idempotency_keys (
            owner text NOT NULL,
            key text NOT NULL,
            body_hash text NOT NULL,
            video_ids text[] NOT NULL DEFAULT '{}',
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (owner, key)
        )
    """)
    op.execute("CREATE INDEX idempotency_keys_oldest ON idempotency_keys (created_at)")
    op.execute("""
        CREATE TABLE webhook_deliveries (
            id text PRIMARY KEY,
            video_id text NOT NULL,
            owner text,
            url text NOT NULL,
            event text NOT NULL,
            payload jsonb NOT NULL,
            tries integer NOT NULL DEFAULT 0,
            next_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            delivered_at timestamptz,
            given_up_at timestamptz,
            last_error text
        )
    """)
    op.execute("""
        CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at)
            WHERE delivered_at IS NULL AND given_up_at IS NULL
    """)
    # Seconds that an engine was taken by a job, newest ones per profile, shape and steps.
    op.execute("""
        CREATE TABLE measured_seconds (
            at timestamptz NOT NULL DEFAULT clock_timestamp(),
            model text NOT NULL,
            profile text NOT NULL,
            rung integer NOT NULL DEFAULT 0,
            width integer NOT NULL,
            height integer NOT NULL,
            num_frames integer NOT NULL,
            steps integer NOT NULL,
            seconds double precision NOT NULL
        )
    """)
    op.execute("CREATE INDEX measured_seconds_newest ON measured_seconds (model, at DESC)")
    # One bucket of tokens a key: a submission takes one, time puts them back.
    op.execute("""
        CREATE TABLE api_rates (
            owner text PRIMARY KEY,
            tokens double precision NOT NULL,
            at timestamptz NOT NULL DEFAULT clock_timestamp()
        )
    """)
    op.execute("CREATE INDEX videos_completed ON videos (completed_at) WHERE state = 'completed'")


def downgrade() -> None:
    """Not offered: going back would lose jobs."""
    raise NotImplementedError("restore a backup instead")
