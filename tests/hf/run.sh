#!/usr/bin/env bash
# Live comparison with transformers, and with peft; makes build/venv-hf first. Arguments go to compare.py.
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=build/venv-hf
torch=torch==2.13.0
wanted="$torch $(tr '\n' ' ' < tests/hf/requirements.txt)"
if [[ "$(cat "$venv/installed.txt" 2>/dev/null)" != "$wanted" ]]; then
  echo "making $venv: $wanted" >&2
  python3 -m venv --clear "$venv"
  # PyTorch first and exactly, so that nothing below can choose another build of it.
  "$venv/bin/pip" install --quiet "$torch"
  "$venv/bin/pip" install --quiet -r tests/hf/requirements.txt
  echo "$wanted" > "$venv/installed.txt"
fi
"$venv/bin/python" tests/hf/compare.py "$@"
"$venv/bin/python" tests/hf/adapter.py
