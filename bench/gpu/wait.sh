#!/bin/bash
# Wait for second.sh's queue, SECONDS at most; then all that it has written so far.
out=${OUT:-build/gpu/out}; mkdir -p "$out"
for _ in $(seq "$1"); do [ -e /opt/out/finished ] && break; sleep 1; done
for log in /tmp/fk-gpu-*/*/var/log/engine-0.log* /tmp/fk-gpu-*/*/*.log; do
  echo "##### $log"; cat "$log"
done | xz > "$out/logs.xz"
cp /opt/out/gpu.jsonl /opt/out/run.log "$out"/
[ -e /opt/out/finished ] && echo finished
grep -v -E "^\{" /opt/out/run.log | tail -"${2:-25}" | cut -c1-400; nvidia-smi --query-gpu=memory.used --format=csv,noheader
