loginctl enable-linger alice; sleep 2
A="setpriv --reuid=alice --regid=alice --init-groups env HOME=/home/alice TERM=xterm-256color LANG=C.UTF-8 SLICER_SIM=2x24G"
$A slicer run --gpus 1 --name train -- sleep 100 & sleep 2
$A slicer run --gpus 2 --name big -- sleep 100 & sleep 2
echo "== bare on a terminal"; $A script -qc "stty cols 100; slicer" /dev/null | cat -v
echo "== NO_COLOR";  $A NO_COLOR=1 script -qc "slicer doctor" /dev/null | cat -v | head -30
echo "== pipe"; $A slicer
$A slicer stop train big
echo "== broken config"; printf 'foo = 1\n' > /tmp/c.toml; chmod 644 /tmp/c.toml; $A SLICER_CONFIG=/tmp/c.toml slicer doctor; $A SLICER_CONFIG=/tmp/c.toml slicer
for i in 1 2 3 4 5; do S=$(date +%s%N); slicer >/dev/null; E=$(date +%s%N); echo bare $(( (E-S)/1000000 )) ms; S=$(date +%s%N); slicer status >/dev/null; E=$(date +%s%N); echo status $(( (E-S)/1000000 )) ms; done
