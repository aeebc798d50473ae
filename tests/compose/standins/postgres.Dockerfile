# Stands in for postgres:17 in tests: Debian's PostgreSQL 17 behind the part of the image's contract that compose.yaml uses.
FROM framekeeper-test/trixie
RUN groupadd -r -g 999 postgres && useradd -r -u 999 -g 999 -d /var/lib/postgresql postgres \
 && apt-get update && apt-get install -y --no-install-recommends postgresql-17 \
 && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* \
 && install -d -o 999 -g 999 -m 1777 /var/lib/postgresql/data \
 && install -d -o 999 -g 999 -m 3777 /var/run/postgresql
ENV PATH=/usr/lib/postgresql/17/bin:/usr/sbin:/usr/bin:/sbin:/bin PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
COPY --chmod=755 postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["/usr/local/bin/docker-entrypoint.sh"]
CMD ["postgres"]
