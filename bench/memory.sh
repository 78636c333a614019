#!/bin/sh
# What stays resident beside a running job: a line "name pss_kib private_kib" for each process but the command.
# In shell, because a Python of ours would share its pages with slicer's and make them look smaller.
# Arguments: options for slicer run.
slicer run -q --profile heavy "$@" -- sleep 600 &
job=$!
tries=0
until sleeper=$(pgrep -x -f 'sleep 600'); do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { echo "the job did not start" >&2; exit 1; }
    sleep 0.1
done
sleep 0.3 # let it settle into its wait
for pid in $job $(pgrep -P $job); do
    [ "$pid" = "$sleeper" ] && continue
    awk -v name="$(cat /proc/$pid/comm)" '/^Pss:/ {pss = $2} /^Private_/ {private += $2} END {print name, pss, private}' \
        /proc/$pid/smaps_rollup
done
systemctl stop 'slicer-*.scope' || [ $? = 5 ] # 5: one has ended by itself meanwhile
wait $job
exit 0
