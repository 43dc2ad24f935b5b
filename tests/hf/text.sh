#!/usr/bin/env bash
# Live comparison of rendered chats, ids and texts with `jinja2` and `tokenizers`; makes
# build/venv-text first. TEXT_TOOL may name another build of bin/text_tool.
#   tests/hf/text.sh                    everything
#   tests/hf/text.sh llama3 qwen2       these tokenizers only
#   tests/hf/text.sh --write-golden     also renews tests/golden/chat and tests/golden/tokenizer
set -euo pipefail
cd "$(dirname "$0")/../.."

venv=build/venv-text
wanted="tokenizers==0.23.3 jinja2==3.1.6"
if [[ "$(cat "$venv/installed.txt" 2>/dev/null)" != "$wanted" ]]; then
  echo "making $venv: $wanted" >&2
  python3 -m venv --clear "$venv"
  # shellcheck disable=SC2086  # two words
  "$venv/bin/pip" install --quiet $wanted
  echo "$wanted" > "$venv/installed.txt"
fi
tool=${TEXT_TOOL:-build/release/bin/text_tool}
golden=()
[[ " $* " == *" --write-golden "* ]] && golden=(--write-golden)
"$venv/bin/python" tests/hf/chat_compare.py --tool "$tool" "${golden[@]}"
"$venv/bin/python" tests/hf/tokenizer_compare.py --tool "$tool" "$@"
