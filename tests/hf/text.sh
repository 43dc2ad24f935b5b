#!/usr/bin/env bash
# Live comparison of ids, texts and rendered chats with `tokenizers` and `jinja2`; makes
# build/venv-text first. TEXT_TOOL may name another build of bin/text_tool. Arguments go to
# tokenizer_compare.py.
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
"$venv/bin/python" tests/hf/tokenizer_compare.py --tool "$tool" "$@"
