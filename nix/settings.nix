# What a configuration file of slicer may say, as options. A key is left out of the file as long as it is
# null: then slicer's own default holds, which no line here repeats.
{ lib, freeformType }:

let
  inherit (lib) mkOption types;
  values = import ./values.nix { inherit lib; };
  inherit (values) key;

  table =
    description: options:
    mkOption {
      type = types.submodule { inherit freeformType options; };
      default = { };
      inherit description;
    };

  # A resource property of systemd.
  property = directive: type: example: does: {
    inherit directive;
    option = key type example "`${directive}=`: ${does}";
  };

  properties = {
    cpu_quota = property "CPUQuota" values.quota "300%" "CPU time at most; 100% is one CPU.";
    cpu_quota_period = property "CPUQuotaPeriodSec" values.period "10ms" "The time that the quota is counted over.";
    cpu_weight = property "CPUWeight" values.cpuWeight 50 "Its share of the CPU; others have 100 unless told.";
    allowed_cpus = property "AllowedCPUs" values.cpus "0-7" "No other CPUs than these.";
    allowed_memory_nodes = property "AllowedMemoryNodes" values.nodes "0" "No memory of other NUMA nodes.";

    memory_min = property "MemoryMin" values.anyMemory "1G" "Memory that is never taken away.";
    memory_low = property "MemoryLow" values.anyMemory "2G" "Memory that is taken away last.";
    memory_high = property "MemoryHigh" values.memory "24G" "Slowed down above this.";
    memory_max = property "MemoryMax" values.memory "32G" "Killed above this.";
    memory_swap_max = property "MemorySwapMax" values.anyMemory 0 "Swap at most.";
    memory_zswap_max = property "MemoryZSwapMax" values.anyMemory "1G" "Compressed swap in memory at most.";
    memory_zswap_writeback =
      property "MemoryZSwapWriteback" values.flag false
        "Whether compressed swap may go on to the disk.";
    tasks_max = property "TasksMax" values.tasks 500 "Processes and threads at most.";

    io_weight = property "IOWeight" values.weight 50 "Its share of the disks; others have 100 unless told.";
    io_device_weight = property "IODeviceWeight" values.ioWeights [ "/dev/sda 200" ] "Its share of single disks.";
    io_read_bandwidth_max =
      property "IOReadBandwidthMax" values.ioRates [ "/dev/sda 10M" ]
        "Bytes read a second at most.";
    io_write_bandwidth_max =
      property "IOWriteBandwidthMax" values.ioRates [ "/dev/sda 10M" ]
        "Bytes written a second at most.";
    io_read_iops_max = property "IOReadIOPSMax" values.ioRates [ "/dev/sda 1K" ] "Reads a second at most.";
    io_write_iops_max = property "IOWriteIOPSMax" values.ioRates [ "/dev/sda 1K" ] "Writes a second at most.";
    io_device_latency_target =
      property "IODeviceLatencyTargetSec" values.ioLatencies [ "/dev/sda 25ms" ]
        "The latency that others must leave it.";

    device_policy =
      property "DevicePolicy" (values.choice [ "auto" "closed" "strict" ]) "closed"
        "Which devices it may open.";
    device_allow = property "DeviceAllow" values.devices [ "/dev/nvidia0 rw" ] "Devices that it may open.";

    oom_policy =
      property "OOMPolicy" (values.choice [ "continue" "stop" "kill" ]) "kill"
        "What follows when the kernel kills one of its processes for memory.";
    managed_oom_swap =
      property "ManagedOOMSwap" (values.choice [ "auto" "kill" ]) "kill"
        "Whether systemd-oomd may kill it when swap runs out.";
    managed_oom_memory_pressure =
      property "ManagedOOMMemoryPressure" (values.choice [ "auto" "kill" ]) "kill"
        "Whether systemd-oomd may kill it under memory pressure.";
    managed_oom_memory_pressure_limit =
      property "ManagedOOMMemoryPressureLimit" values.share "60%"
        "The pressure from which it may.";
    managed_oom_preference =
      property "ManagedOOMPreference" (values.choice [ "none" "avoid" "omit" ]) "avoid"
        "Whether systemd-oomd kills others first.";

    runtime_max = property "RuntimeMaxSec" values.time "12h" "The same as `timeout`.";
    timeout_stop =
      property "TimeoutStopSec" values.time "30s"
        "How long it may take to end before it is killed.";
    kill_signal = property "KillSignal" values.signal "SIGINT" "The signal that asks it to end.";
    kill_mode =
      property "KillMode" (values.choice [ "control-group" "mixed" ]) "mixed"
        "Which of its processes get that signal.";
    send_sighup = property "SendSIGHUP" values.flag true "Whether they get SIGHUP as well.";
    send_sigkill = property "SendSIGKILL" values.flag false "Whether they are killed in the end.";
  };
  optionsOf = lib.mapAttrs (_: each: each.option);

  # A value as a unit file has it. An empty quota is none.
  inUnitFile =
    name: found:
    if name == "cpu_quota" && found == "infinity" then
      ""
    else
      lib.concatMapStringsSep "," toString (lib.toList found);

  # What can be said of a whole slice.
  sliceProperties = lib.getAttrs [
    "cpu_weight"
    "cpu_quota"
    "allowed_cpus"
    "memory_high"
    "memory_max"
    "memory_swap_max"
    "tasks_max"
    "io_weight"
  ] properties;

  slice =
    name:
    table ''
      Limits of `${name}.slice`, all its jobs together. They become a drop-in of the slice;
      `systemd.slices.${name}.sliceConfig` wins over them.
    '' (optionsOf sliceProperties);

  # A table of which "there it is, and nothing is said in it" means something.
  tableOrNone =
    description: options:
    mkOption {
      type = types.nullOr (types.submodule { inherit freeformType options; });
      default = null;
      inherit description;
    };

  tablesOf =
    description: options:
    mkOption {
      type = types.attrsOf (types.submodule { inherit freeformType options; });
      default = { };
      inherit description;
    };

  onBusy = values.choice [
    "fail"
    "wait"
    "other"
  ];

  # One destination of a route.
  destination = {
    args = key values.words [ "--device" "cuda" ] "What is put after the command's own arguments.";
    prepend = key values.words [ "--fast" ] "What is put before them.";
    replace =
      key values.replacements
        {
          "--model" = "large";
          "--fp16" = false;
        }
        "Options and their new values, where the command has them. `false` takes one away.";
    profile = key values.text "train" "Its profile; `gpu` for the mode gpu and `heavy` for cpu, unless told.";
    max_jobs = key (values.count 1 null) 2 "How many of its jobs at a time. It is a slot, named ROUTE-DESTINATION.";
    vram = key values.gpuMemory "10G" "GPU memory of a job.";
    memory = key values.finiteMemory "6G" "Memory of a job; more is a kill (`MemoryMax=`).";
    on_busy = key onBusy "wait" "What becomes of a job that finds it busy; what the route says, unless told.";
    exit_code = key values.exitCode 75 "Of a job that is blocked; what the route says, unless told.";
  };

  route = {
    description = key values.text "captions" "What {command}`slicer routes` says of it.";
    probe =
      key
        (values.probes [
          "duration"
          "size"
          "lines"
          "tokens"
          "pixels"
          "megapixel_seconds"
          "count"
          "command"
        ])
        "duration"
        "What is measured of a job's input.";
    probe_command =
      key values.command [ "my-probe" "{}" ]
        "The command that prints the measure, for the probe `command`. `{}` is the input.";
    probe_timeout = key values.someTime "30s" "How long a probe may take.";
    tokens_per_word = key values.factor 1.3 "How many tokens a word is, for the probe `tokens`.";
    input = key values.input (-1) "Which argument is the input. Left out: the only one that names a file.";
    threshold = key values.bounds "1h" "What the GPU takes at most; for several probes a list.";
    on_probe_error =
      key (values.choice [ "fail" "gpu" "cpu" ]) "cpu"
        "Where a job goes that cannot be measured.";
    on_gpu_oom =
      key (values.choice [ "fail" "cpu" ]) "cpu"
        "Whether a job that ran out of GPU memory runs once more, on the CPU.";
    idempotent = key values.flag false "`false`: never once more after it has written something.";
    memory_reserve = key values.finiteMemory "2G" "Of the machine's memory, for all else, in {command}`slicer routes check`.";
    on_busy = key onBusy "wait" "What becomes of a job whose destination is busy: it fails, waits, or takes another one.";
    exit_code = key values.exitCode 75 "Of a job that is blocked.";
    gpu = tableOrNone "The destination of what is not larger than the threshold." destination;
    cpu = tableOrNone "The destination of all else." destination;
    to = tablesOf "In place of `gpu`, `cpu` and `threshold`: any number of destinations." (
      destination
      // {
        mode = key (values.choice [ "gpu" "cpu" ]) "gpu" "Whether its jobs get a GPU.";
        up_to = key values.bounds "10m" "What it takes at most; unless told, everything.";
      }
    );
  };

  # A server of `slicer serve`.
  server = {
    kind =
      key (values.choice [ "ollama" "openai" "llamacpp" "comfyui" "raw" ]) "ollama"
        "Which requests need a GPU, and what its errors look like; `openai` is vLLM, SGLang, TGI, and `raw` any HTTP server.";
    description = key values.text "chat for the lab" "For people.";
    listen = key values.words [ "127.0.0.1:11434" ] ''
      Where clients ask: addresses with a port, or `unix:` and the path of a socket. Unless told, the usual port of its kind.
    '';
    public = key values.flag true "Whether it may listen at other addresses than loopback's.";
    hosts = key values.words [ "gpu.example.org" ] "Names that a request's Host may have, besides localhost and addresses.";
    command = key values.command [ "ollama" "serve" ] ''
      Starts the server; `''${PORT}` in a word is the port that slicer chose. Left out: it runs already, at `upstream`.
    '';
    env = mkOption {
      type = types.attrsOf values.text;
      default = { };
      example = {
        OLLAMA_KEEP_ALIVE = "-1";
      };
      description = "Environment variables for the command. Every user can read them: no secrets here.";
    };
    upstream = key values.text "http://127.0.0.1:11435" "Where the server listens; with a command, unless told, at a free port.";
    profile = key values.text "gpu" "The profile of its job, or of the lease.";
    gpus = key (values.count 1 null) 1 "How many GPUs a lease takes; what the profile says, unless told.";
    vram = key values.gpuMemory "20G" "Memory on each of them; what the profile says, unless told.";
    models = key values.words [ "coder" ] "Of several servers at one address, it takes requests with these in the JSON field `model`.";
    path = key values.text "/coder" "Of several, it takes requests whose path begins with this.";
    ready_path = key values.text "/health" "What answers a GET once the server is ready; that of its kind, unless told.";
    ready_timeout = key values.someTime "10m" "How long it may take until it is ready.";
    idle = key values.someTime "5m" "From the end of the last request until the GPU is given back.";
    min_hold = key values.finiteWait "30s" "How long it keeps its GPU although another server at the same address waits for it.";
    max_wait = key values.wait "10m" "How long a request waits for the lease; 0 is not at all.";
    give_way = key values.flag false "Whether an idle one gives its GPU back at once when another job waits for one.";
    release_timeout = key values.someTime "30s" "How long its end, or the unloading of its models, may take.";
    drain = key values.finiteWait "30s" "How long requests may go on once {command}`slicer serve` is to end.";
    on_offload =
      key (values.choice [ "warn" "fail" ]) "fail"
        "Of Ollama: what follows when a model lies partly in the machine's memory.";
    load_first = key values.flag false "Of Ollama: whether slicer loads a model itself, before the request that wants it.";
    routes_gpu = key values.words [ "POST /extra" ] "More requests that need a GPU.";
    routes_free = key values.words [ "POST /tokenize" ] "More requests that need none.";
    routes_allow = key values.words [ "/free" ] "Administrative paths that are forwarded all the same.";
    ignore_websockets = key values.flag true "Whether an open websocket is no request.";
  };

  needs = {
    description = key values.text "nightly training" "What {command}`slicer profiles` says of it.";
    inherits = key values.text "gpu" ''
      The profile that says what this one does not: one of these, or a built-in one (`light`, `heavy`, `gpu`).
    '';
    slice =
      key (values.choice [ "cpu" "gpu" ]) "gpu"
        "The slice that its jobs belong to; unless told, where their GPUs are.";
    gpus = key (values.count 0 null) 1 "How many GPUs a job takes: whole ones, or with `vram` a part of each.";
    gpu = key values.gpus [ 0 1 ] "No other GPUs than these. A job takes all of them, or as many as `gpus` says.";
    vram = key values.gpuMemory "20G" "Memory to take on each GPU. Jobs that fit beside each other share it.";
    margin = key values.margin "1G" "Memory to keep free on each GPU beside `vram`.";
    share =
      key (values.choice [ "off" "lock" "cap" "both" ]) "both"
        "How its jobs share a GPU: their work takes turns (`lock`), `vram` is a hard limit (`cap`), or both.";
    share_mode = key values.shareMode "launches=10" "When the turn of a job ends; `yield`, unless told: when others wait.";
    share_skip_syncs = key (values.numberTo 1000000) 2 "Keep the turn over the first so many synchronisations, for tests.";
    over_cap =
      key (values.choice [ "warn" "end" ]) "end"
        "What becomes of a job that was seen to use more than its cap.";
    fence =
      key (values.choice [ "auto" "on" "off" ]) "off"
        "Whether its jobs can open no GPUs but their own; `on`: no job where that cannot be.";
    devices =
      key values.nvidiaDevices [ "/dev/nvidia-modeset" ]
        "More of NVIDIA's device nodes, or groups such as `char-nvidia-caps-imex-channels`, that its jobs may open.";
    cpu_slots = key (values.count 0 null) 1 "How many of the CPU slots a job takes.";
    slots = mkOption {
      type = types.attrsOf (values.count 0 null);
      default = { };
      example = {
        license-matlab = 1;
      };
      description = "How many slots of which name a job takes. Those of other names than `cpu` stand in `slots`.";
    };
    priority = key values.priority 10 "Of the jobs that wait, the highest is first.";
    max_wait = key values.wait "2h" "A job waits no longer than this; 0 is not at all.";
    "then" =
      key (values.choice [ "run" "fail" ]) "fail"
        "What becomes of a job that has waited for `max_wait`.";
    threads = key (values.count 1 "auto") "auto" ''
      `OMP_NUM_THREADS` and its kin. `"auto"`: one for each CPU that the limits leave.
    '';
    timeout = key values.time "12h" "A job is ended after this long.";
    linger =
      key values.flag true
        "Whether to wait for processes that outlive the command instead of ending them.";
    notify = key values.notifyWords [ "done" "desktop" ] "The events that are told, in place of those in [notify].";
    env = mkOption {
      type = types.attrsOf values.variable;
      default = { };
      example = {
        WANDB_MODE = "offline";
        TERM = false;
      };
      description = "Environment variables of a job. Every user can read them: no secrets here.";
    };
  };
in
{
  type = types.submodule {
    inherit freeformType;
    options = {
      default_profile = key values.text "heavy" "The profile of jobs that name none.";
      compat_gpu_lock = key values.path "/tmp/gpu.lock" ''
        A lock file to hold with every lease on a GPU, for scripts that use {command}`flock` on it.
      '';
      slots = mkOption {
        type = types.submodule {
          freeformType = types.attrsOf (values.count 1 null);
          options.cpu = key (values.count 1 null) 4 "How many slots there are: heavy CPU jobs at a time.";
        };
        default = { };
        description = "CPU slots, and counted slots of any other name: `license-matlab = 2`.";
      };
      gpu = table "How jobs share GPUs." {
        idle_threshold = key values.margin "200M" "A GPU of which no more is used counts as idle.";
        margin = key values.margin "512M" "Memory to keep free beside the `vram` of a job.";
        spike_buffer = key values.share "10%" "What other programs may use beyond the most that they used.";
      };
      waiting = table "How jobs take turns." {
        reserve_after = key values.finiteWait "5m" ''
          A job that others have passed for longer has what it needs kept for it.
        '';
      };
      logs = table "The output of jobs that were started with `--detach`." {
        max_size = key values.gpuMemory "256M" "The most of a job's log that is kept; the beginning goes first.";
        keep = key values.wait "30d" "How long the logs of ended jobs stay.";
      };
      notify = table "Messages about the ends of jobs. Any user can read them, so put no passwords here." {
        on = key values.notifyWords [ "failed" "oom" ] "The events, and `desktop` as a destination.";
        command = key values.words [ "my-notify" ] "A command, which gets each event as JSON on its standard input.";
        urls = key values.words [ "ntfy://my-topic" ] "Addresses, as apprise reads them.";
      };
      slices = mkOption {
        type = types.submodule {
          inherit freeformType;
          options = {
            cpu = slice "cpu";
            gpu = slice "gpu";
          };
        };
        default = { };
        description = "Limits of slices.";
      };
      profiles = mkOption {
        type = types.attrsOf (
          types.submodule {
            inherit freeformType;
            options = needs // optionsOf properties;
          }
        );
        default = { };
        example = lib.literalExpression ''
          {
            train = {
              inherits = "gpu";
              vram = "20G";
              memory_max = "80%";
              timeout = "12h";
              env.WANDB_MODE = "offline";
            };
          }
        '';
        description = ''
          Profiles: named sets of limits and needs for {command}`slicer run --profile NAME`. One with the name
          of a built-in profile changes what it says and keeps the rest.
        '';
      };
      routes = tablesOf ''
        Routes, for {command}`slicer route NAME`: whether a job goes to the GPU or the CPU, by what its input
        measures.
      '' route;
      serve = tablesOf ''
        Servers, for {command}`slicer serve NAME`: each gets a GPU only while somebody asks it. `programs.slicer.serve`
        has systemd start them.
      '' server;
    };
  };

  builtinProfiles = [
    "gpu"
    "heavy"
    "light"
  ];

  # The settings of a slice as systemd.slices.<name>.sliceConfig has them.
  sliceConfig =
    settings:
    lib.mapAttrs' (
      name: each: lib.nameValuePair each.directive (inUnitFile name settings.${name})
    ) (lib.filterAttrs (name: _: settings.${name} != null) sliceProperties);
}
