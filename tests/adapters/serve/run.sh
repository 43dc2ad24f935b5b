#!/bin/sh
# Public clients on `quire serve`, in an environment of their own with pinned versions:
#   tests/adapters/serve/run.sh [FOLDER]     (build/adapters/serve; wants make build)
# LangChain, litellm, `aiperf profile`, `lmcache bench engine` and, where tests/adapters/lmcache/run.sh has
# installed it, `vllm bench serve`. What cannot be installed is skipped, aloud.
. "$(dirname "$0")/../environment.sh"

if ! is_of_requirements; then
  install -r "$here/requirements.txt" ||
    skip "clients on quire serve: LangChain and litellm cannot be installed"
  made_of_requirements
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
run_tests "$here"
