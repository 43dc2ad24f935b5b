#!/bin/sh
# The KV events of `quire serve` in the index of NVIDIA Dynamo's router, in an environment of its own with pinned
# versions:
#   tests/adapters/dynamo/run.sh [FOLDER]     (build/adapters/dynamo; wants make build)
# What cannot be installed is skipped, aloud.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/tests/adapters/dynamo
folder=${1:-$root/build/adapters/dynamo}
mkdir -p "$folder"

[ -d "$folder/env" ] || python3 -m venv "$folder/env"
python=$folder/env/bin/python
if ! cmp -s "$here/requirements.txt" "$folder/installed"; then
  if ! "$python" -m pip install -q -r "$here/requirements.txt"; then
    echo "SKIPPED: KV events in Dynamo's index: ai-dynamo-runtime cannot be installed"
    exit 0
  fi
  cp "$here/requirements.txt" "$folder/installed"
fi
QUIRE_BINARY=${QUIRE_BINARY:-$root/build/release/quire} "$python" -m pytest -q -p no:cacheprovider "$here"
