# Read by the run.sh of each engine: `. "$(dirname "$0")/../environment.sh"`. Makes an environment of
# Python in the folder that run.sh's first argument names (build/adapters/ENGINE).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
folder=${1:-$root/build/adapters/$(basename "$here")}
python=$folder/env/bin/python
export QUIRE_BINARY="${QUIRE_BINARY:-$root/build/release/quire}"
mkdir -p "$folder"
[ -d "$folder/env" ] || python3 -m venv "$folder/env"

skip() { echo "SKIPPED: $1"; exit 0; }
install() { "$python" -m pip install -q "$@"; }

# Whether the environment was made of requirements.txt as it is; made_of_requirements says that it is.
is_of_requirements() { cmp -s "$here/requirements.txt" "$folder/installed"; }
made_of_requirements() { cp "$here/requirements.txt" "$folder/installed"; }

# The package, as users have it, with its library inside.
install_quire() { install --no-deps --force-reinstall "$root/python"; }
run_tests() { "$python" -m pytest -q -W ignore -p no:cacheprovider "$@"; }
