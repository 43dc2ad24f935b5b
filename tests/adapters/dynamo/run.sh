#!/bin/sh
# The KV events of `quire serve` in the index of NVIDIA Dynamo's router, in an environment of its own with pinned
# versions:
#   tests/adapters/dynamo/run.sh [FOLDER]     (build/adapters/dynamo; wants make build)
# What cannot be installed is skipped, aloud.
. "$(dirname "$0")/../environment.sh"

if ! is_of_requirements; then
  install -r "$here/requirements.txt" ||
    skip "KV events in Dynamo's index: ai-dynamo-runtime cannot be installed"
  made_of_requirements
fi
run_tests "$here"
