#!/bin/sh
# Tests of LMCache on Quire, in an environment of their own with pinned versions:
#   tests/adapters/lmcache/run.sh [FOLDER]     (build/adapters/lmcache; wants build/release)
# Runs LMCache's own tests of connectors on quire.lmcache, then vLLM with an LMCache server. What
# cannot be installed is skipped, aloud.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/tests/adapters/lmcache
folder=${1:-$root/build/adapters/lmcache}
mkdir -p "$folder"
cd "$folder"

skip() { echo "SKIPPED: LMCache on Quire: $1"; exit 0; }

[ -d env ] || python3 -m venv env
python=$folder/env/bin/python
if ! [ -e installed ]; then
  # torch first, exactly; the rest without its own wishes.
  "$python" -m pip install -q torch==2.13.0 pytest setuptools setuptools-scm wheel \
    || skip "torch 2.13.0 cannot be installed"
  "$python" -m pip install -q --no-deps -r "$here/requirements.txt" \
    || skip "LMCache 0.5.6 and vLLM 0.32.0 cannot be installed"
  "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  touch installed
fi
# Its tests are in the source package alone.
if ! [ -d tests ]; then
  NO_CUDA_EXT=1 NO_NATIVE_EXT=1 "$python" -m pip download -q --no-deps --no-binary :all: \
    --no-build-isolation lmcache==0.5.6 || skip "LMCache's source package cannot be had"
  tar xzf lmcache-0.5.6.tar.gz --strip-components=1 lmcache-0.5.6/tests lmcache-0.5.6/pyproject.toml
fi

# The package, as users have it, with its library inside.
"$python" -m pip install -q --no-deps --force-reinstall "$root/python"

export LMCACHE_TRACK_USAGE=false DO_NOT_TRACK=1
PYTHONPATH="$here" "$python" -m pytest -q -W ignore -p on_quire -p no:cacheprovider \
  tests/v1/distributed/test_native_connector_l2_adapter.py
"$python" -m pytest -q -W ignore -p no:cacheprovider \
  "$root/python/tests/test_lmcache.py" "$here/test_restart.py"
