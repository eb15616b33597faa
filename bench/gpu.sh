#!/bin/sh
# Plays the trainer's contract on a GPU, and measures speed and memory, with Python alone. The machine needs PyTorch, transformers and PEFT; wheels in
# bench/gpu/wheels are installed first. Record the cases before, where Node is: npx tsx bench/record-torch.ts
#
#   sh bench/gpu.sh [--device cpu] [--tiny]
set -eu
here=$(cd "$(dirname "$0")/gpu" && pwd)
python=${PYTHON:-python3}
cases=${CASES:-$here/cases}
out=${OUT:-.}
device=$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
tiny=
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    --tiny) tiny=--tiny; shift ;;
    *) echo "gpu.sh: expected --device NAME or --tiny, got $1" >&2; exit 2 ;;
  esac
done
[ -d "$cases" ] || { echo "gpu.sh: $cases is not here; record it: npx tsx bench/record-torch.ts" >&2; exit 2; }
if [ -d "$here/wheels" ]; then "$python" -m pip install --quiet --no-index --find-links "$here/wheels" "$here"/wheels/*.whl; fi
status=0
timeout 200 "$python" "$here/play.py" --cases "$cases" --device "$device" >"$out/contract.json" || status=1
timeout 260 "$python" "$here/speed.py" --cases "$cases" --device "$device" $tiny >"$out/speed.json" || status=1
cat "$out/contract.json" "$out/speed.json"
exit $status
