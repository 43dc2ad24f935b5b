#!/bin/sh
# Tests of LMCache on Quire, in an environment of their own with pinned versions:
#   tests/adapters/lmcache/run.sh [FOLDER]     (build/adapters/lmcache; wants build/release)
# Runs LMCache's own tests of connectors on quire.lmcache, then vLLM with an LMCache server. What
# cannot be installed is skipped, aloud.
. "$(dirname "$0")/../environment.sh"
cd "$folder"

if ! is_of_requirements; then
  # torch first, exactly; the rest without its own wishes.
  install torch==2.13.0 pytest setuptools setuptools-scm wheel \
    || skip "LMCache on Quire: torch 2.13.0 cannot be installed"
  install --no-deps -r "$here/requirements.txt" \
    || skip "LMCache on Quire: LMCache 0.5.6 and vLLM 0.32.0 cannot be installed"
  "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  made_of_requirements
fi
# Its tests are in the source package alone.
if ! [ -d tests ]; then
  NO_CUDA_EXT=1 NO_NATIVE_EXT=1 "$python" -m pip download -q --no-deps --no-binary :all: \
    --no-build-isolation lmcache==0.5.6 \
    || skip "LMCache on Quire: LMCache's source package cannot be had"
  tar xzf lmcache-0.5.6.tar.gz --strip-components=1 lmcache-0.5.6/tests lmcache-0.5.6/pyproject.toml
fi
install_quire

export LMCACHE_TRACK_USAGE=false DO_NOT_TRACK=1
PYTHONPATH="$here" run_tests -p on_quire \
  tests/v1/distributed/test_native_connector_l2_adapter.py
run_tests "$root/python/tests/test_lmcache.py" "$here/test_restart.py"
