#!/bin/sh
# What processes that wait in slicer's queue take, and how often they wake up while nothing happens.
# Usage: waiting.sh WAITERS SECONDS
# A line "place pss_kib private_kib switches" for the first, the middle and the last one in line, and for what the
# first has started already; switches is how often it went to sleep within SECONDS, that is, woke up. In shell, because a Python of ours would share its
# pages with slicer's and make them look smaller; for the same reason the job that holds the slot is without its
# supervisor (--exec), so that with one waiter there is nobody it could share with.
set -eu
waiters=$1 seconds=$2
state=$(mktemp -d /tmp/bench-waiting.XXXXXX)
export CPU_RUN_SLOTS=1 SLICER_STATE_DIR="$state/state"

all_sleep() {
    for pid in $pids; do
        grep -q '^State:.S' /proc/$pid/status || return 1
    done
}
ticks() {
    for pid in $pids; do
        cut -d' ' -f14,15 /proc/$pid/stat
    done
}
switches() {
    awk '/^voluntary_ctxt_switches/ {print $2}' /proc/$1/status
}

slicer run -q --exec --profile heavy -- sleep 3600 &
holder=$!
until pgrep -x -f 'sleep 3600' >/dev/null; do sleep 0.1; done

pids=
count=0
while [ $count -lt $waiters ]; do
    slicer run -q --profile heavy -- true &
    pids="$pids $!"
    count=$((count + 1))
    sleep 0.3 # so that they queue in this order
done
tries=0
before=
until now=$(ticks) && [ "$now" = "$before" ] && all_sleep; do
    before=$now
    tries=$((tries + 1))
    [ $tries -lt 120 ] || { echo "the waiters did not come to rest" >&2; exit 1; }
    sleep 1
done

set -- $pids
first=$1
middle=$(echo $pids | cut -d' ' -f$(((waiters + 1) / 2)))
for last in $pids; do :; done
child=$(pgrep -P $first || :)
[ -z "$child" ] || before_child=$(switches $child)
before_first=$(switches $first) before_middle=$(switches $middle) before_last=$(switches $last)
sleep $seconds
show() {
    awk -v name="$1" -v woke=$(($(switches $2) - $3)) \
        '/^Pss:/ {pss = $2} /^Private_/ {private += $2} END {print name, pss, private, woke}' /proc/$2/smaps_rollup
}
show first $first $before_first
[ -z "$child" ] || show "first-keeper" $child $before_child
if [ $waiters -gt 1 ]; then
    show middle $middle $before_middle
    show last $last $before_last
fi
kill -9 $pids
systemctl stop 'slicer-*.scope' || [ $? = 5 ] # 5: one has ended by itself meanwhile
wait $holder $pids 2>/dev/null || :
rm -rf "$state"
