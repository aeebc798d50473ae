#!/bin/bash
# Second load, on the same machine: the sections of run.py that are named, in a session of their own, so that they go
# on when this call ends; `wait.sh` waits for them. Engines alone after them: names that begin with engine-.
set -u
python3 bench/gpu/unpack.py "$1" || exit 1
shift
rm -f /opt/out/finished
setsid nohup bash -c '
  export PYTHONUNBUFFERED=1
  sections=(); engines=()
  for name in "$@"; do case $name in engine-*) engines+=("$name");; *) sections+=("$name");; esac; done
  /opt/framekeeper/bin/python bench/gpu/run.py --model /opt/model --out /opt/out/gpu.jsonl "${sections[@]}"
  for name in "${engines[@]}"; do bash bench/gpu/engines.sh "$name"; done
  touch /opt/out/finished
' queue "$@" > /opt/out/run.log 2>&1 < /dev/null &
