"""Every change of a job's state, written down by the database itself: nothing can pass it."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

WATCH = """
CREATE TABLE soak_changes (n bigserial, at timestamptz DEFAULT clock_timestamp(), id text, before text,
    after text, attempt integer, cancel boolean, deleted boolean);
CREATE FUNCTION soak_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO soak_changes (id, before, after, attempt, cancel, deleted) VALUES
            (OLD.id, OLD.state, 'gone', OLD.attempt, OLD.cancel_requested_at IS NOT NULL,
            OLD.deleted_at IS NOT NULL);
    ELSIF TG_OP = 'INSERT' OR OLD.state <> NEW.state THEN
        INSERT INTO soak_changes (id, before, after, attempt, cancel, deleted) VALUES (NEW.id,
            CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END, NEW.state, NEW.attempt,
            NEW.cancel_requested_at IS NOT NULL, NEW.deleted_at IS NOT NULL);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER soak_watch AFTER INSERT OR UPDATE OR DELETE ON videos
    FOR EACH ROW EXECUTE FUNCTION soak_note();
"""


def begin(url: str) -> None:
    """Start writing down."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(WATCH)


def rows(url: str, query: str) -> list[dict[str, Any]]:
    """What a query finds."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(query).fetchall()
