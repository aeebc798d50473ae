#!/bin/bash
# A Docker engine for `make test-compose`, on a Debian 12 machine that has none, run as root.
#
#   engine.sh start DIRECTORY    install what is missing, start it, make the stand-in images; safe to repeat
#   engine.sh stop DIRECTORY     stop it; images and layers stay in DIRECTORY for the next start
#
# Afterwards DOCKER_HOST=unix://DIRECTORY/docker.sock. No image registry is asked: the base images are stood in for by
# Debian's own packages under the names that the Dockerfiles and compose.yaml use. They carry this machine's certificates and
# are never pushed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
action=${1:?start or stop}
work=$(mkdir -p "${2:?directory}" && cd "$2" && pwd)
export DOCKER_HOST=unix://$work/docker.sock DEBIAN_FRONTEND=noninteractive
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -n 1)

running() {
    docker info > /dev/null 2>&1
}

# Debian 12's engine is too old for what the Dockerfiles use (named build contexts), and compose 2 and buildx it has not. Debian
# 13's need nothing that Debian 12 lacks, but its runc and tini do.
install_packages() {
    local old=(e2fsprogs iptables mmdebstrap runc tini) new=(containerd docker-buildx docker-cli docker-compose docker.io)
    if ! dpkg -s "${old[@]}" > /dev/null 2>&1; then
        apt-get update -qq
        apt-get install -yqq --no-install-recommends "${old[@]}"
    fi
    dpkg --compare-versions "$(dpkg-query -W -f '${Version}' docker.io 2> /dev/null || echo 0)" ge 26 \
        && docker compose version && docker buildx version && return
    local apt=$work/apt
    mkdir -p "$apt"/{sources,lists/partial,cache/archives/partial}
    sed -e '/^$/,$d' -e 's/^Suites:.*/Suites: trixie/' /etc/apt/sources.list.d/debian.sources > "$apt/sources/trixie.sources"
    local options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources"
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache")
    apt-get "${options[@]}" update -qq
    (cd "$apt" && rm -f ./*.deb && apt-get "${options[@]}" download -qq "${new[@]}")
    apt-get install -yqq --no-install-recommends "$apt"/*.deb
}

# Its own directories and no bridge of its own: nothing of the machine's network is changed but by compose.
start_engine() {
    dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" --bridge=none \
        --iptables=false --ip6tables=false --ip-forward=false --storage-driver overlay2 \
        -H "$DOCKER_HOST" > "$work/dockerd.log" 2>&1 < /dev/null &
    for _ in $(seq 150); do
        running && return
        sleep 0.2
    done
    tail -n 20 "$work/dockerd.log" >&2
    return 1
}

have() {
    docker image inspect "$1" > /dev/null 2>&1
}

# NAME SUITE: a Debian of packages, as small as Debian's own image.
debian() {
    have "$1" && return
    # shellcheck disable=SC2016  # $1 in the hooks is mmdebstrap's
    mmdebstrap --quiet --variant=minbase --include=ca-certificates \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' --aptopt='APT::Install-Recommends "false"' \
        --customize-hook='cp -L /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/" 2>/dev/null || true' \
        --customize-hook='chroot "$1" update-ca-certificates > /dev/null' "$2" - "$mirror" |
        docker import -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' -c 'CMD ["bash"]' - "$1" > /dev/null
}

# Names with tags are read from where they are used, so that a stand-in can never be one of another version.
names() {
    sed -nE "s,^(ARG [A-Z0-9_]+_IMAGE=|    image: )($1:[^@ ]+).*,\2,p" "$here"/../../docker/*.Dockerfile "$here/../../compose.yaml" | sort -u
}

stand_ins() {
    local kind image
    debian framekeeper-test/bookworm bookworm
    debian framekeeper-test/trixie trixie
    for kind in python postgres prom/prometheus; do
        for image in $(names "$kind"); do
            case $image in python:3.11*) ;; python:*) continue ;; esac
            have "$image" || docker build --quiet --network=host -t "$image" -f "$here/standins/${kind##*/}.Dockerfile" "$here/standins"
        done
    done
}

case $action in
    start)
        install_packages > "$work/packages.log" 2>&1 || { tail -n 20 "$work/packages.log" >&2; exit 1; }
        running || start_engine
        stand_ins
        docker version --format 'Docker {{.Server.Version}}'
        ;;
    stop)
        if [ -s "$work/pid" ]; then
            pid=$(cat "$work/pid")
            kill "$pid" 2> /dev/null || true
            for _ in $(seq 100); do
                kill -0 "$pid" 2> /dev/null || exit 0
                sleep 0.2
            done
            exit 1
        fi
        ;;
    *)
        echo "start or stop, not $action" >&2
        exit 2
        ;;
esac
