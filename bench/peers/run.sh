#!/usr/bin/env bash
# Quire beside llama.cpp. Makes build/venv-peers first, where llama.cpp is compiled for this very
# CPU (some ten minutes, once).
#   bench/peers/run.sh kernels [FLAGS]          kernels.py: attention of a token, and a prompt
#   bench/peers/run.sh shared_prefix [FLAGS]    shared_prefix.py: servers with many clients
set -euo pipefail
cd "$(dirname "$0")/../.."

# Arguments are refused before anything is compiled.
if [[ $1 == kernels ]]; then python3 bench/peers/kernels_arguments.py "${@:2}"; fi

venv=build/venv-peers
if ! cmp -s bench/peers/requirements.txt "$venv/requirements.txt"; then
  echo "making $venv: compiling llama.cpp takes some ten minutes" >&2
  python3 -m venv --clear "$venv"
  CMAKE_ARGS="-DGGML_NATIVE=ON" CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
    "$venv/bin/pip" install --no-input --disable-pip-version-check \
    --requirement bench/peers/requirements.txt </dev/null >&2
  cp bench/peers/requirements.txt "$venv/requirements.txt"  # last: an interrupted run starts over
fi
exec "$venv/bin/python" "bench/peers/$1.py" "${@:2}"
