#!/bin/bash
# Second load when little time is left: h200-fast, then h200, with errors of the fast engine beside the first's start.
set -u
out=$OUT; python3 bench/gpu/unpack.py "$1" || exit 1
python=/opt/framekeeper/bin/python; export PYTHONUNBUFFERED=1
while [ ! -e /opt/model.done ]; do sleep 0.5; done; echo "== ${SECONDS} s: checkpoint is there"
mkdir -p /opt/out /opt/turns
$python -c 'import pathlib, sys; sys.path.insert(0, "bench/gpu"); import profiles; profiles.write(pathlib.Path("/opt/profiles"), pathlib.Path("/opt/model"))'
(ONLY_SMALL=1 bash bench/gpu/engines.sh engine-upstream engine-fast; $python bench/gpu/variant.py compare /opt/turns engine-upstream /opt/out/gpu.jsonl) > /opt/out/group.log 2>&1 &
(timeout -s TERM "$2" $python bench/gpu/run.py --model /opt/model --out /opt/out/gpu.jsonl --steps 2 1 h200-fast h200 card) > /opt/out/run.log 2>&1 &
for _ in $(seq "$2"); do sleep 1; cp /opt/out/*.jsonl /opt/out/*.log "$out"/ 2>/dev/null; kill -0 $! 2>/dev/null || break; done
for log in /tmp/fk-gpu-*/*/var/log/engine-0.log* /tmp/fk-gpu-*/*/*.log; do echo "##### $log"; cat "$log"; done | xz > "$out/logs.xz"
cat /opt/out/group.log | tail -5; grep -v "^{" /opt/out/run.log | tail -6 | cut -c1-300; cut -c1-2600 /opt/out/gpu.jsonl
FRAMEKEEPER_PROFILE=h200 FRAMEKEEPER_ENGINE_PYTHON=$python FRAMEKEEPER_MODEL=/opt/model \
  timeout "$3" $python -m framekeeper doctor --json > "$out/doctor-h200.json" 2> "$out/doctor.err"; echo "doctor $?"
