#!/bin/sh
# Tests of llama-cpp-python and of llama.cpp's server on Quire, in an environment of their own with
# pinned versions:
#   tests/adapters/llama-cpp/run.sh [FOLDER]     (build/adapters/llama-cpp; wants make build)
# llama-cpp-python is compiled once, which takes ten minutes. What cannot be installed is skipped,
# aloud.
. "$(dirname "$0")/../environment.sh"

if ! is_of_requirements; then
  install -r "$here/requirements.txt" || skip "llama-cpp-python on Quire: it cannot be installed"
  made_of_requirements
fi
install_quire
run_tests "$here"
