"""Alembic's scripts; run by `framekeeper.database.migrate`."""
