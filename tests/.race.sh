slicer install-units >/dev/null 2>&1; gpasswd --add alice slicer >/dev/null; gpasswd --add bob slicer >/dev/null; loginctl enable-linger alice; loginctl enable-linger bob; sleep 1
export SLICER_SIM=2x24G
as() { setpriv --reuid=$1 --regid=$1 --init-groups env HOME=/home/$1 XDG_RUNTIME_DIR=/run/user/$(id -u $1) slicer run -q -- true || echo "$1 code $?"; }
for i in $(seq 30); do rm -rf /run/slicer/sim-*; (as alice & as bob & slicer run -q -- true & wait) 2>&1 | grep -v "not enforced"; done; ls -la /run/slicer /run/slicer/sim*
