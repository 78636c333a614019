#!/bin/sh
# The first process of a namespace machine, already in its own namespaces: makes the tree its root and becomes systemd.
# Usage: boot.sh ROOT KEY CHECKOUT WHEEL
#
# A systemd that runs over the host's root would empty the host's /tmp, so every step from pivot_root on is checked.
set -eu
root=$1 key=$2 checkout=$3 wheel=$4

die() { echo "boot.sh: $*" >&2; exit 1; }

[ $$ -eq 1 ] || die "not the first process of a pid namespace"
[ "$(cat "$root/etc/slicer-machine")" = "$key" ] || die "$root is not the tree of image $key"

mount --make-rprivate /
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# The kernel's knobs are the host's: seen, not turned.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755,nosuid,nodev run "$root/run"
mount -t tmpfs -o mode=1777,nosuid,nodev tmp "$root/tmp"
# A user's container may mount /proc only where all of it is seen somewhere.
mkdir -m 700 "$root/run/whole-proc"
mount -t proc -o nosuid,nodev,noexec proc "$root/run/whole-proc"

dev=$root/dev
mount -t tmpfs -o mode=755,nosuid dev "$dev"
for node in null zero full random urandom tty; do
    : > "$dev/$node"
    mount --bind "/dev/$node" "$dev/$node"
done
mkdir "$dev/pts" "$dev/shm"
mount -t devpts -o newinstance,nosuid,noexec,ptmxmode=0666,mode=620,gid=5 devpts "$dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev shm "$dev/shm"
ln -s pts/ptmx "$dev/ptmx"
ln -s /proc/self/fd "$dev/fd"
ln -s /proc/self/fd/0 "$dev/stdin"
ln -s /proc/self/fd/1 "$dev/stdout"
ln -s /proc/self/fd/2 "$dev/stderr"

mount --bind "$checkout" "$root/src"
mount -o remount,bind,ro "$root/src"
mount --bind "$wheel" "$root/wheel"
mount -o remount,bind,ro "$root/wheel"

# What there is no hardware, no console or no right for here. (The tree serves QEMU too, where these run.)
mkdir -p "$root/run/systemd/system"
for unit in systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service \
    systemd-modules-load.service systemd-sysctl.service systemd-timesyncd.service console-getty.service \
    getty@tty1.service getty-static.service slicer-agent.service e2scrub_reap.service; do
    ln -s /dev/null "$root/run/systemd/system/$unit"
done

# Each reload of systemd runs all generators, for as long as all else that it does; here they have nothing to make.
mkdir "$root/run/systemd/system-generators"
for generator in "$root"/usr/lib/systemd/system-generators/*; do
    ln -s /dev/null "$root/run/systemd/system-generators/${generator##*/}"
done

# A user's manager goes with its last session, not 10 s later: tests wait for that.
mkdir -p "$root/run/systemd/logind.conf.d"
printf '[Login]\nUserStopDelaySec=0\n' > "$root/run/systemd/logind.conf.d/test-machine.conf"

mkdir "$root/.host"
cd "$root"
pivot_root . .host
cd /
umount -l /.host
rmdir /.host
[ "$(cat /etc/slicer-machine)" = "$key" ] || die "the new root is not the tree of image $key"
[ "$(findmnt -no TARGET / | wc -l)" -eq 1 ] || die "something else is mounted on the new root"

# Modules and the clock are the host's too.
exec env -i container=slicer-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio \
    /usr/lib/systemd/systemd --show-status=false
