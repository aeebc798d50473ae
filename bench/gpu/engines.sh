#!/bin/bash
# Engines alone: all that are named load side by side and are timed one after the other; then their errors against
# upstream's defaults, where those are among them. Variables as in all.py.
turns=$(dirname "$RESULTS")/turns
rm -rf "$turns"; mkdir -p "$turns"
export TURN_ORDER="$*" PYTHONUNBUFFERED=1
for name in "$@"; do
  timeout 420 "$PYTHON" bench/gpu/variant.py "$MODEL" "$PROFILES" "$name" "$turns" "$RESULTS" > "$(dirname "$RESULTS")/$name.log" 2>&1 &
done
wait
status=0
for name in "$@"; do grep -q "\"$name\"" "$RESULTS" || { status=1; echo "$name failed"; grep -v Warning "$(dirname "$RESULTS")/$name.log" | tail -12; }; done
for base in engine-upstream large-upstream; do
  [ -e "$turns/$base.pt" ] && "$PYTHON" bench/gpu/variant.py compare "$turns" $base "$RESULTS"
done
exit $status
