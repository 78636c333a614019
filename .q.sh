echo "== ROOT"; slicer doctor --json | python3 -c 'import json,sys; print([(f["id"],f["mend"]) for f in json.load(sys.stdin)["findings"]])'
slicer doctor --json | python3 -c 'import json,sys
for f in json.load(sys.stdin)["findings"]:
    for m in f["mend"]: print(m)' > /tmp/mend.sh; sed -i 's/^slicer install$/slicer install --user-delegation/' /tmp/mend.sh; cat /tmp/mend.sh; sh -x /tmp/mend.sh
cat /sys/block/vda/queue/scheduler
echo "== ROOT after"; slicer doctor; echo rc=$?
loginctl enable-linger alice; sleep 4
echo "== ALICE after"; A="setpriv --reuid=alice --regid=alice --init-groups env HOME=/home/alice"
$A slicer doctor; echo rc=$?; python3 - <<'P'
import pty,os
P
$A script -qc "slicer doctor" /dev/null | head -40 | cat -v
for i in 1 2 3 4 5; do S=$(date +%s%N); slicer >/dev/null; E=$(date +%s%N); echo bare $(( (E-S)/1000000 )) ms; S=$(date +%s%N); slicer status >/dev/null; E=$(date +%s%N); echo status $(( (E-S)/1000000 )) ms; done
