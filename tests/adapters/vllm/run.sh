#!/bin/sh
# Tests of vLLM on Quire, in an environment of their own with pinned versions:
#   tests/adapters/vllm/run.sh [FOLDER]     (build/adapters/vllm; wants make build)
# What cannot be installed is skipped, aloud.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/tests/adapters/vllm
folder=${1:-$root/build/adapters/vllm}
mkdir -p "$folder"

[ -d "$folder/env" ] || python3 -m venv "$folder/env"
python=$folder/env/bin/python
if ! cmp -s "$here/requirements.txt" "$folder/installed"; then
  # torch first, exactly; the rest without its own wishes.
  if ! "$python" -m pip install -q torch==2.13.0 pytest setuptools==78.1.1 ||
     ! "$python" -m pip install -q --no-deps -r "$here/requirements.txt"; then
    echo "SKIPPED: vLLM on Quire: vLLM 0.32.0 cannot be installed"
    exit 0
  fi
  "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  cp "$here/requirements.txt" "$folder/installed"
fi
"$python" -m pip install -q --no-deps --force-reinstall "$root/python"
QUIRE_BINARY=${QUIRE_BINARY:-$root/build/release/quire} "$python" -m pytest -q -W ignore \
  -p no:cacheprovider "$here"
