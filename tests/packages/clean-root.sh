#!/usr/bin/env bash
# Do the packages of `make deb` work where nothing else is? Makes a Debian 12 root with nothing in it,
# installs them there with apt, runs the program, builds both embedding examples against libquire-dev,
# and takes the packages out again. Wants root and the network; ends with "clean root: ok".
#   tests/packages/clean-root.sh DEBS      QUIRE_MIRROR names another mirror than deb.debian.org
set -euo pipefail
cd "$(dirname "$0")/../.."
debs=${1:?"usage: clean-root.sh FOLDER_OF_DEBS"}
mirror=${QUIRE_MIRROR:-http://deb.debian.org/debian}
((EUID == 0)) || { echo "clean root: wants root, for debootstrap and chroot" >&2; exit 1; }

lintian --allow-root --fail-on error "$debs"/*.deb
root=$(mktemp -d)
chmod 755 "$root"  # apt fetches as a user of its own
trap 'rm -rf --one-file-system "$root"' EXIT
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
  { tail -5 "$root.log" >&2; exit 1; }
rm -f "$root.log"
mkdir "$root/debs"
cp "$debs"/*.deb examples/embed examples/embed_c "$root/debs" -r
cp /etc/resolv.conf "$root/etc/resolv.conf"

# A namespace of its own for mounts, so that none is left whatever happens.
inside() {
  unshare --mount --fork --pid --mount-proc="$root/proc" \
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    bash -euc "cd /tmp; $1" </dev/null
}
apt='apt-get -qq -o Dpkg::Use-Pty=0 --no-install-recommends -y'
fail() { echo "clean root: $1" >&2; exit 1; }

echo "clean root: the program"
inside "$apt install /debs/quire_*.deb" >/dev/null
inside "quire demo" | tail -12
ask='generate --prompt "Once upon a time" --max-tokens 16 --json --model'
digest='s/.*"logits_digest": *"\([0-9a-f]*\)".*/\1/p'
here=$(eval "build/release/quire $ask models/tiny" | sed -n "$digest")
there=$(inside "quire $ask /usr/share/quire/models/tiny" | sed -n "$digest")
[[ -n $here && $here == "$there" ]] || fail "logits_digest is $there, built here it is $here"

echo "clean root: the library"
inside "$apt install /debs/libquire*.deb g++ cmake make pkg-config" >/dev/null
said="reused   0 of 100 tokens, the rest is never_seen
reused  96 of 100 tokens, the rest is partial_block
the bits are the same"
inside "cmake -S /debs/embed -B embed >/dev/null && cmake --build embed >/dev/null"
[[ $(inside "embed/embed") == "$said" ]] || fail "examples/embed says something else"
inside 'gcc -std=c99 /debs/embed_c/main.c $(pkg-config --cflags --libs quire) -o embed_c'
[[ $(inside "./embed_c") == "$said" ]] || fail "examples/embed_c says something else"

echo "clean root: taking them out"
inside "dpkg --purge quire libquire-dev \$(dpkg-query -W -f '\${Package} ' 'libquire[0-9]*')" >/dev/null
left=$(find "$root/usr" -name 'quire*' -o -name 'libquire*' | head -5)
[[ -z $left ]] || fail "left behind: $left"
echo "clean root: ok"
