# A NixOS with slicer in a virtual machine: `nix build .#checks.x86_64-linux.nixos`, or without flakes
# `nix-build --expr '(import <nixpkgs> { }).callPackage ./nix/vm-test.nix { }'`.
{ testers }:

testers.runNixOSTest {
  name = "slicer";

  nodes.machine = {
    imports = [ ./module.nix ];
    programs.slicer = {
      enable = true;
      userDelegation = true;
      settings = {
        slots.cpu = 1;
        slices.cpu.tasks_max = 4000;
        profiles.limited = {
          memory_max = "64M";
          tasks_max = 50;
        };
      };
    };
    users.users.alice = {
      isNormalUser = true;
      uid = 1000;
      linger = true;
    };
  };

  # tests/systemd/test_nixos_script.py runs it on Debian, too.
  testScript = ''
    machine.wait_for_unit("multi-user.target")
    machine.wait_for_unit("user@1000.service")

    with subtest("the slices are there, with what the configuration says of them"):
        shown = machine.succeed("systemctl show -p LoadState,Description,CPUWeight,TasksMax cpu.slice")
        assert "LoadState=loaded" in shown, shown
        assert "Description=CPU jobs run by slicer" in shown, shown
        assert "CPUWeight=15" in shown, shown
        assert "TasksMax=4000" in shown, shown
        machine.succeed("systemctl cat gpu.slice")

    with subtest("a scope runs with its limits"):
        limits = machine.succeed(
            "slicer run -p limited -- sh -c 'systemctl show -p Slice,MemoryMax,TasksMax"
            " $(grep -om1 slicer-.*scope /proc/self/cgroup)'"
        )
        assert sorted(limits.split()) == ["MemoryMax=67108864", "Slice=cpu.slice", "TasksMax=50"], limits

    with subtest("a job inherits nothing of slicer's own Python"):
        inherited = machine.succeed("slicer run -- env")
        assert "PYTHON" not in inherited, inherited

    with subtest("two jobs exclude each other, and status shows both"):
        machine.execute("slicer run --cpu-slots 1 --name first -- sleep 1000 >/tmp/first.log 2>&1 &")
        machine.wait_until_succeeds("slicer status | grep first")
        busy, _ = machine.execute("slicer run --cpu-slots 1 --no-wait -- true 2>/dev/null")
        assert busy == 75, busy
        machine.execute("slicer run --cpu-slots 1 --name second -- touch /tmp/second >/tmp/second.log 2>&1 &")
        machine.wait_until_succeeds("slicer status | grep second")
        assert "first" in machine.succeed("slicer status")
        machine.fail("test -e /tmp/second")
        machine.succeed("slicer stop first")
        machine.wait_until_succeeds("test -e /tmp/second")

    with subtest("history and journal tell it, and the catalog explains it"):
        machine.wait_until_succeeds("slicer history | grep second")
        machine.succeed("journalctl --sync")
        told = machine.succeed("journalctl -x --no-pager SLICER_NAME=second")
        for word in ("Job second waits for a lease", "Job second has finished", "Defined-By: slicer"):
            assert word in told, told

    with subtest("a user has slices of their own, and may use the delegated controllers"):
        shown = machine.succeed(
            "runuser -u alice -- env HOME=/home/alice XDG_RUNTIME_DIR=/run/user/1000"
            " slicer run -p limited --set IOWeight=50 -- cat /proc/self/cgroup"
        )
        assert "user@1000.service/cpu.slice/slicer-" in shown.replace("_cpu", "cpu"), shown
        controllers = machine.succeed("systemctl show -p DelegateControllers user@1000.service")
        assert "io" in controllers and "cpuset" in controllers, controllers

    # The rest is for a machine in which limits act, and for NixOS.
    with subtest("a job over its limit is killed, and history knows why"):
        killed, _ = machine.execute("slicer run -p limited --name greedy -- tail /dev/zero 2>/dev/null")
        assert killed == 137, killed
        machine.wait_until_succeeds("slicer history | grep greedy | grep oom")

    with subtest("completions and manual pages come with it"):
        machine.succeed("test -e /run/current-system/sw/share/bash-completion/completions/slicer")
        machine.succeed("test -e /run/current-system/sw/share/man/man1/slicer.1.gz")
        machine.succeed("test $(stat -Lc %u%a /etc/slicer/config.toml) = 0444")
  '';
}
