#!/bin/sh
# The main job on real input (make run): compress this machine's shared libraries under the profile "heavy",
# and show what was enforced and what came of it. $1 is the virtual environment.
set -eu
slicer=$1/bin/slicer
size=${DEMO_MIB:-32}

command -v xz >/dev/null || sh tools/apt.sh xz-utils

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The history of what ran is the last thing to be shown. Root's is not in the home.
if [ "$(id -u)" -ne 0 ] && ! mkdir -p "${XDG_STATE_HOME:-${HOME:-/nonexistent}/.local/state}" 2>"$scratch/why"; then
    echo "your history cannot be kept ($(cat "$scratch/why")): this run's is in a temporary directory"
    export XDG_STATE_HOME="$scratch"
fi

show() {
    printf '\n$ %s\n' "slicer $*"
    "$slicer" "$@"
}

outcome=$scratch/outcome
work="find /usr/lib /lib -xdev -type f -name '*.so*' -exec cat {} + 2>/dev/null | head -c ${size}M | xz -T0 | wc -c"

show run --profile heavy --dry-run -- sh -c "$work"
show run --profile heavy --name demo --expect 30s --outcome "$outcome" -- sh -c "$work"
job=$(sed -n 's/.*"job": "\([0-9a-f]*\)".*/\1/p' "$outcome")
show history "$job"
show status
