#!/bin/sh
# Public clients on `quire serve`, in an environment of their own with pinned versions:
#   tests/adapters/serve/run.sh [FOLDER]     (build/adapters/serve; wants make build)
# LangChain, litellm, `aiperf profile`, `lmcache bench engine` and, where tests/adapters/lmcache/run.sh has
# installed it, `vllm bench serve`. What cannot be installed is skipped, aloud.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/tests/adapters/serve
folder=${1:-$root/build/adapters/serve}
mkdir -p "$folder"

[ -d "$folder/env" ] || python3 -m venv "$folder/env"
python=$folder/env/bin/python
if ! cmp -s "$here/requirements.txt" "$folder/installed"; then
  if ! "$python" -m pip install -q -r "$here/requirements.txt"; then
    echo "SKIPPED: clients on quire serve: LangChain and litellm cannot be installed"
    exit 0
  fi
  cp "$here/requirements.txt" "$folder/installed"
fi
# aiperf and LMCache's command, without torch: their wishes and those above do not agree.
[ -d "$folder/benches" ] || python3 -m venv "$folder/benches"
if ! cmp -s "$here/requirements-benches.txt" "$folder/installed-benches"; then
  if "$folder/benches/bin/python" -m pip install -q --no-deps -r "$here/requirements-benches.txt"; then
    cp "$here/requirements-benches.txt" "$folder/installed-benches"
  else
    echo "SKIPPED: aiperf and lmcache bench engine cannot be installed"
  fi
fi
if [ -e "$folder/installed-benches" ]; then
  export BENCHES_BIN="$folder/benches/bin"
fi
vllm=$root/build/adapters/lmcache/env/bin/python
if "$vllm" -c 'import vllm' >/dev/null 2>&1; then
  export VLLM_PYTHON="$vllm"
else
  echo "SKIPPED: vllm bench serve: tests/adapters/lmcache/run.sh has not installed vLLM"
fi
export LITELLM_LOCAL_MODEL_COST_MAP=True DO_NOT_TRACK=1
QUIRE_BINARY=${QUIRE_BINARY:-$root/build/release/quire} "$python" -m pytest -q -W ignore \
  -p no:cacheprovider "$here"
