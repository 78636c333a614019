#!/bin/sh
# What stays resident for each running job of a queue, while jobs start and end beside it.
# Usage: queue_memory.sh JOBS SECONDS
# A line "keeper pss_kib private_kib" for the keeper of each of the JOBS, one "supervisor pss_kib private_kib" for its
# supervisor, and one "queue pss_kib private_kib".
# In shell, because a Python of ours would share its pages with slicer's and make them look smaller.
set -eu
jobs=$1 seconds=$2
directory=$(mktemp -d /tmp/bench-queue.XXXXXX)
cd "$directory"
export SLICER_STATE_DIR="$directory/state" XDG_STATE_HOME="$directory/xdg"

show() {
    awk -v name="$1" '/^Pss:/ {pss = $2} /^Private_/ {private += $2} END {print name, pss, private}' /proc/$2/smaps_rollup
}
i=0
while [ $i -lt $jobs ]; do echo "[vram=100M] sleep 600"; i=$((i + 1)); done >jobs
i=0
while [ $i -lt 5000 ]; do echo "[vram=100M] sleep 0.0$((i % 10))"; i=$((i + 1)); done >>jobs
slicer queue jobs -q --sim 4 -j $((jobs + 2)) 2>words >&2 &
queue=$!
tries=0
until [ "$(pgrep -x -f 'sleep 600' | wc -l)" -eq $jobs ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { echo "the jobs did not start:" >&2; cat words >&2; exit 1; }
    sleep 0.1
done
sleep $seconds
for sleeper in $(pgrep -x -f 'sleep 600'); do
    keeper=$sleeper
    until [ "$(cat /proc/$keeper/comm)" = slicer-keeper ]; do keeper=$(awk '/^PPid:/ {print $2}' /proc/$keeper/status); done
    show keeper $keeper
    show supervisor $(awk '/^PPid:/ {print $2}' /proc/$keeper/status)
done
show queue $queue
kill -0 $queue || { echo "the queue has ended:" >&2; cat words >&2; exit 1; }
kill $queue
sleep 0.3
kill $queue
wait $queue || :
cd /
rm -rf "$directory"
