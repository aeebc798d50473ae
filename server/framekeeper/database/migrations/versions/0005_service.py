"""When each model was last served, so that no job waits for a model that is gone for ever."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    # Beside `engines`, whose rows are overwritten when a host serves another model.
    op.execute("""
        CREATE TABLE model_service (
            model text PRIMARY KEY,
            served_at timestamptz NOT NULL DEFAULT clock_timestamp()
        )
    """)


def downgrade() -> None:
    """Not offered: going back would lose jobs."""
    raise NotImplementedError("restore a backup instead")
