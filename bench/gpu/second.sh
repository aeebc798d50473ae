#!/bin/bash
# Second load, on the same machine: the sections of run.py that are named.
set -u
out=${OUT:-build/gpu/out}; mkdir -p "$out"; export PYTHONUNBUFFERED=1
if [ -d build/gpu/carry/2 ]; then python3 bench/gpu/unpack.py build/gpu/carry/2 || exit 1; fi
/opt/framekeeper/bin/python bench/gpu/run.py --model /opt/model --out "$out/gpu.jsonl" "$@" 2>&1 | tee "$out/run.log" | cut -c1-900
for log in /tmp/fk-gpu-*/*/var/log/engine-0.log*; do
  echo "##### $log"; cat "$log"
done | xz > "$out/engine-logs.xz"
for log in /tmp/fk-gpu-*/*/*.log; do
  echo "##### $log"; cat "$log"
done | xz > "$out/logs.xz"
