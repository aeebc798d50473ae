#!/bin/bash
# What https://github.com/docker-library/postgres/blob/master/17/trixie/docker-entrypoint.sh does with these variables.
set -euo pipefail
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086  # several arguments
    initdb -D "$PGDATA" --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" ${POSTGRES_INITDB_ARGS:-} > /dev/null
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -w start -o "-c listen_addresses=''" > /dev/null
    createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -D "$PGDATA" -m fast -w stop > /dev/null
fi
exec "$@" -c "listen_addresses=*"
