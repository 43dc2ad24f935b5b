#!/bin/sh
# Tests of vLLM on Quire, in an environment of their own with pinned versions:
#   tests/adapters/vllm/run.sh [FOLDER]     (build/adapters/vllm; wants make build)
# What cannot be installed is skipped, aloud.
. "$(dirname "$0")/../environment.sh"

if ! is_of_requirements; then
  # torch first, exactly; the rest without its own wishes.
  install torch==2.13.0 pytest setuptools==78.1.1 &&
    install --no-deps -r "$here/requirements.txt" ||
    skip "vLLM on Quire: vLLM 0.32.0 cannot be installed"
  "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  made_of_requirements
fi
install_quire
run_tests "$here"
