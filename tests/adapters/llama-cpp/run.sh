#!/bin/sh
# Tests of llama-cpp-python on Quire, in an environment of their own with pinned versions:
#   tests/adapters/llama-cpp/run.sh [FOLDER]     (build/adapters/llama-cpp; wants make build)
# llama-cpp-python is compiled once, which takes ten minutes. What cannot be installed is skipped,
# aloud.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/tests/adapters/llama-cpp
folder=${1:-$root/build/adapters/llama-cpp}
mkdir -p "$folder"

[ -d "$folder/env" ] || python3 -m venv "$folder/env"
python=$folder/env/bin/python
if ! cmp -s "$here/requirements.txt" "$folder/installed"; then
  if ! "$python" -m pip install -q -r "$here/requirements.txt"; then
    echo "SKIPPED: llama-cpp-python on Quire: it cannot be installed"
    exit 0
  fi
  cp "$here/requirements.txt" "$folder/installed"
fi
"$python" -m pip install -q --no-deps --force-reinstall "$root/python"
QUIRE_BINARY=${QUIRE_BINARY:-$root/build/release/quire} "$python" -m pytest -q -W ignore \
  -p no:cacheprovider "$here"
