#!/bin/sh
# Make the virtual environment $1 with slicer (editable) and its development tools; install by apt what that needs.
set -eu
venv=$1

python=
for candidate in python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done

# venv and the headers, for building pystemd, come apart from Python on Debian.
python_is_whole() {
    "$1" -c 'import ensurepip, os, sysconfig as s; open(os.path.join(s.get_paths()["include"], "Python.h"))' 2>/dev/null
}

packages=
command -v gcc >/dev/null || packages="$packages gcc libc6-dev"
command -v pkg-config >/dev/null || packages="$packages pkg-config"
pkg-config --exists libsystemd 2>/dev/null || packages="$packages libsystemd-dev"
if [ -z "$python" ]; then
    packages="$packages python3 python3-venv python3-dev"
elif ! python_is_whole "$python"; then
    packages="$packages $("$python" -c 'import sys; print("python3.%d-venv python3.%d-dev" % ((sys.version_info[1],) * 2))')"
fi

if [ -n "$packages" ]; then
    # shellcheck disable=SC2086 # a list of words
    sh tools/apt.sh $packages
fi

# What was interrupted half-way begins anew: pip fails on its own remains.
[ ! -e "$venv/unfinished" ] || rm -rf "$venv"
mkdir -p "$venv"
touch "$venv/unfinished"
[ -x "$venv/bin/python" ] || "${python:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --editable '.[dev]'
mv "$venv/unfinished" "$venv/stamp"
