#!/bin/sh
# Two servers of one model that hand prompts to each other through a Redis, until Ctrl-C:
#   serve.sh REDIS MODEL         for example: serve.sh redis://127.0.0.1:6379/demo ../../models/tiny
# On two machines start one line on each, with a copy of the same key file.
set -eu
redis=$1 model=$2
quire=${QUIRE:-quire}
folder=$(mktemp -d)
trap 'kill 0; rm -rf "$folder"' EXIT
head -c 32 /dev/urandom > "$folder/fleet.key"
chmod 600 "$folder/fleet.key"
for port in 8081 8082; do
  "$quire" serve --model "$model" --listen "127.0.0.1:$port" --load always \
    --remote "$redis" --fleet-key "$folder/fleet.key" &
done
wait
