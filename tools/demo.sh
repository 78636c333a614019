#!/bin/sh
# The main job on real input (make run): compress this machine's shared libraries under the profile "heavy",
# and show what was enforced and what came of it. $1 is the virtual environment.
set -eu
slicer=$1/bin/slicer
size=${DEMO_MIB:-32}

if ! command -v xz >/dev/null; then
    echo "installing by apt: xz-utils"
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get -qq update
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends xz-utils >/dev/null
fi

show() {
    printf '\n$ %s\n' "slicer $*"
    "$slicer" "$@"
}

outcome=$(mktemp)
trap 'rm -f "$outcome"' EXIT
work="find /usr/lib /lib -xdev -type f -name '*.so*' -exec cat {} + 2>/dev/null | head -c ${size}M | xz -T0 | wc -c"

show run --profile heavy --dry-run -- sh -c "$work"
show run --profile heavy --name demo --expect 30s --outcome "$outcome" -- sh -c "$work"
job=$(sed -n 's/.*"job": "\([0-9a-f]*\)".*/\1/p' "$outcome")
show history "$job"
show status
