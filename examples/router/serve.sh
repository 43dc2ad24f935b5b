#!/bin/sh
# Two servers of one model and a router in front of them, until Ctrl-C:
#   serve.sh MODEL         for example: serve.sh ../../models/tiny
# PYTHON has the packages pyzmq and msgpack.
set -eu
model=$1
here=$(dirname "$0")
quire=${QUIRE:-quire} python=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'kill 0; rm -rf "$folder"' EXIT
for i in 1 2; do
  "$quire" serve --model "$model" --listen "127.0.0.1:808$i" \
    --events "ipc://$folder/$i.events" --events-replay "ipc://$folder/$i.replay" &
done
"$python" "$here/router.py" --listen 127.0.0.1:8000 \
  --server http://127.0.0.1:8081 "ipc://$folder/1.events" "ipc://$folder/1.replay" \
  --server http://127.0.0.1:8082 "ipc://$folder/2.events" "ipc://$folder/2.replay"
