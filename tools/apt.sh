#!/bin/sh
# Install Debian packages, as root or by sudo; where that cannot be, say what to ask root for.
set -eu
if [ "$(id -u)" -eq 0 ]; then
    sudo=
elif command -v sudo >/dev/null; then
    sudo=sudo
else
    echo "not installed: $*; there is no sudo here, so ask root: apt-get install $*" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "not installed, by Debian's names: $*; there is no apt-get here, so install them as this system does" >&2
    exit 1
fi
echo "installing by apt: $*"
$sudo apt-get -qq update
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
