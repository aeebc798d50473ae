#!/bin/bash
# First load, in the checkout on the bench machine: environment, checkpoints, streams of layerwise offload.
set -u
out=${OUT:-build/gpu/out}; mkdir -p "$out"; export PYTHONUNBUFFERED=1
say() { echo "== ${SECONDS} s: $*"; }
nvidia-smi --query-gpu=name,uuid,memory.total,memory.used,driver_version --format=csv,noheader
free -g | sed -n 2p; df -h /opt | tail -1
python3 bench/gpu/unpack.py build/gpu/carry/1 || exit 1
python=/opt/framekeeper/bin/python
[ -d /opt/small ] || $python bench/gpu/checkpoint.py /opt/small --layers 4 2>&1 | tail -3
say small checkpoint
{ [ -d /opt/model ] || $python bench/gpu/checkpoint.py /opt/model; $python bench/gpu/grow.py 80; } > "$out/checkpoint.log" 2>&1 &
making=$!
$python -c 'import pathlib, sys; sys.path.insert(0, "bench/gpu"); import profiles; profiles.write(pathlib.Path("/opt/profiles"), pathlib.Path("/opt/model"))'
for prefetch in async sync; do
  timeout 200 $python bench/gpu/streams.py /opt/small /opt/profiles bench-$prefetch "$out/streams.jsonl" \
    > "$out/streams-$prefetch.log" 2>&1 || tail -25 "$out/streams-$prefetch.log"
  say streams $prefetch
done
cat "$out/streams.jsonl"; wait $making; tail -3 "$out/checkpoint.log"; free -g | sed -n 2p; df -h /opt | tail -1; say done
