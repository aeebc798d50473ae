#!/bin/bash
# First load, in the checkout on the bench machine: environment, checkpoint, what the card can do, engines alone.
set -u
out=${OUT:-build/gpu/out}; mkdir -p "$out" /opt/out /opt/turns; export PYTHONUNBUFFERED=1
say() { echo "== ${SECONDS} s: $*"; }
nvidia-smi --query-gpu=name,uuid,memory.total,memory.used,driver_version --format=csv,noheader
free -g | sed -n 2p; df -h /opt | tail -1
python3 bench/gpu/unpack.py "$1" || exit 1
python=/opt/framekeeper/bin/python
[ -d /opt/model ] || $python bench/gpu/checkpoint.py /opt/model 2>&1 | tail -3
say checkpoint
$python bench/gpu/grow.py 100
$python -c 'import pathlib, sys; sys.path.insert(0, "bench/gpu"); import profiles; profiles.write(pathlib.Path("/opt/profiles"), pathlib.Path("/opt/model"))'
timeout 120 $python bench/gpu/ceilings.py /opt/model /opt/out/gpu.jsonl > /opt/out/ceilings.log 2>&1 || tail -5 /opt/out/ceilings.log
say ceilings
bash bench/gpu/engines.sh engine-upstream engine-h200 engine-fast engine-fp8-attention engine-fp8-linear
say engines
$python bench/gpu/variant.py compare /opt/turns engine-upstream /opt/out/gpu.jsonl 2>&1 | tail -3
cp /opt/out/* "$out"/; cut -c1-1500 /opt/out/gpu.jsonl; say done
