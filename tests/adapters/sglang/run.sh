#!/bin/sh
# Tests of SGLang on Quire, in an environment of their own with pinned versions:
#   tests/adapters/sglang/run.sh [FOLDER]     (build/adapters/sglang; wants make build)
# What cannot be installed is skipped, aloud. SGLang's wheel is for GPUs: stubs/ has modules that its
# imports want and that do not load without one, cpu.py what its cache lacks there.
. "$(dirname "$0")/../environment.sh"

if ! is_of_requirements; then
  # torch first, exactly; the rest without its own wishes.
  install torch==2.13.0 pytest setuptools==84.2.1 &&
    install --no-deps -r "$here/requirements.txt" ||
    skip "SGLang on Quire: SGLang 0.5.23 cannot be installed"
  made_of_requirements
fi
install_quire
export PYTHONPATH="$here/stubs"
run_tests "$here"
