"""A video can be deleted while an engine works on it: hidden at once, removed when the engine let go."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the mark, and keep hidden rows out of the listing's index."""
    op.execute("ALTER TABLE videos ADD COLUMN deleted_at timestamptz")
    op.execute("DROP INDEX videos_newest")
    op.execute("CREATE INDEX videos_newest ON videos (created_at DESC, id DESC) WHERE deleted_at IS NULL")


def downgrade() -> None:
    """Not offered: going back would lose jobs."""
    raise NotImplementedError("restore a backup instead")
