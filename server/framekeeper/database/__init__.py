"""PostgreSQL: connections, migrations, and the embedded server."""
