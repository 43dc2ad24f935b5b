#!/bin/sh
# Tests of Hugging Face transformers on Quire, in an environment of their own with pinned versions:
#   tests/adapters/transformers/run.sh [FOLDER]    (build/adapters/transformers; wants make build)
# What cannot be installed is skipped, aloud. MODELS=1 tries every decoder type of transformers too
# (some minutes; the page goes to FOLDER/models.md). BENCH=1 measures, and fails where a bound of
# bench_generate.py does not hold.
. "$(dirname "$0")/../environment.sh"

if ! is_of_requirements; then
  # torch first and exactly, so that nothing below can choose another build of it.
  install torch==2.13.0 || skip "transformers on Quire: torch 2.13.0 cannot be installed"
  install -r "$here/requirements.txt" ||
    skip "transformers on Quire: transformers 5.23.0 cannot be installed"
  made_of_requirements
fi
install_quire
cd "$folder"
"$python" -m pytest -q -p no:cacheprovider -c "$root/python/pyproject.toml" "$here"
# Those of the package that need torch; `make test` runs the others.
"$python" -m pytest -q -p no:cacheprovider -c "$root/python/pyproject.toml" \
  "$root/python/tests/test_views.py" "$root/python/tests/test_package.py" \
  "$root/python/tests/test_processes.py" "$root/python/tests/test_store.py" \
  "$root/python/tests/test_cache.py"
# Logits of adapters that peft wrote, beside peft's.
"$python" "$root/tests/hf/adapter.py"
[ -z "${MODELS:-}" ] || "$python" "$here/model_table.py" --page "$folder/models.md"
[ -z "${BENCH:-}" ] || "$python" "$here/bench_generate.py" --check --json "$folder/bench.json"
