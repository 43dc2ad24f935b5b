#!/bin/sh
# Tests of SGLang on Quire, in an environment of their own with pinned versions:
#   tests/adapters/sglang/run.sh [FOLDER]     (build/adapters/sglang; wants make build)
# What cannot be installed is skipped, aloud. SGLang's wheel is for GPUs: stubs/ has modules that its
# imports want and that do not load without one, cpu.py what its cache lacks there.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/tests/adapters/sglang
folder=${1:-$root/build/adapters/sglang}
mkdir -p "$folder"

[ -d "$folder/env" ] || python3 -m venv "$folder/env"
python=$folder/env/bin/python
if ! cmp -s "$here/requirements.txt" "$folder/installed"; then
  # torch first, exactly; the rest without its own wishes.
  if ! "$python" -m pip install -q torch==2.13.0 pytest setuptools==84.2.1 ||
     ! "$python" -m pip install -q --no-deps -r "$here/requirements.txt"; then
    echo "SKIPPED: SGLang on Quire: SGLang 0.5.23 cannot be installed"
    exit 0
  fi
  cp "$here/requirements.txt" "$folder/installed"
fi
"$python" -m pip install -q --no-deps --force-reinstall "$root/python"
PYTHONPATH="$here/stubs" QUIRE_BINARY=${QUIRE_BINARY:-$root/build/release/quire} \
  "$python" -m pytest -q -W ignore -p no:cacheprovider "$here"
