#!/bin/bash
# Engines alone: all that are named load side by side and are timed one after the other.
python=/opt/framekeeper/bin/python
export TURN_ORDER="$*" PYTHONUNBUFFERED=1
for name in "$@"; do
  timeout 420 $python bench/gpu/variant.py /opt/model /opt/profiles "$name" /opt/turns /opt/out/gpu.jsonl > "/opt/out/$name.log" 2>&1 &
done
wait
for name in "$@"; do grep -q "\"$name\"" /opt/out/gpu.jsonl || { echo "$name failed"; grep -v Warning "/opt/out/$name.log" | tail -12; }; done
