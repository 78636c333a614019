# The keys of slicer's configuration file, as options. A null key is left out of the file. Then slicer's own
# default applies, which is not repeated here.
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
    cpu_quota = property "CPUQuota" values.quota "300%" "The CPU time limit; 100% is one CPU.";
    cpu_quota_period = property "CPUQuotaPeriodSec" values.period "10ms" "The period of the quota.";
    cpu_weight = property "CPUWeight" values.cpuWeight 50 "Its share of the CPU; others have 100 by default.";
    allowed_cpus = property "AllowedCPUs" values.cpus "0-7" "The only CPUs that it may use.";
    allowed_memory_nodes = property "AllowedMemoryNodes" values.nodes "0" "The only NUMA nodes whose memory it may use.";

    memory_min = property "MemoryMin" values.anyMemory "1G" "Memory that is never reclaimed.";
    memory_low = property "MemoryLow" values.anyMemory "2G" "Memory that is reclaimed last.";
    memory_high = property "MemoryHigh" values.memory "24G" "Slowed down above this.";
    memory_max = property "MemoryMax" values.memory "32G" "Killed above this.";
    memory_swap_max = property "MemorySwapMax" values.anyMemory 0 "The swap limit.";
    memory_zswap_max = property "MemoryZSwapMax" values.anyMemory "1G" "The limit of compressed swap in memory.";
    memory_zswap_writeback =
      property "MemoryZSwapWriteback" values.flag false
        "Whether compressed swap may be written to the disk.";
    tasks_max = property "TasksMax" values.tasks 500 "The limit of processes and threads.";

    io_weight = property "IOWeight" values.weight 50 "Its share of the disks; others have 100 by default.";
    io_device_weight = property "IODeviceWeight" values.ioWeights [ "/dev/sda 200" ] "Its share of individual disks.";
    io_read_bandwidth_max =
      property "IOReadBandwidthMax" values.ioRates [ "/dev/sda 10M" ]
        "The limit of bytes read per second.";
    io_write_bandwidth_max =
      property "IOWriteBandwidthMax" values.ioRates [ "/dev/sda 10M" ]
        "The limit of bytes written per second.";
    io_read_iops_max = property "IOReadIOPSMax" values.ioRates [ "/dev/sda 1K" ] "The limit of reads per second.";
    io_write_iops_max = property "IOWriteIOPSMax" values.ioRates [ "/dev/sda 1K" ] "The limit of writes per second.";
    io_device_latency_target =
      property "IODeviceLatencyTargetSec" values.ioLatencies [ "/dev/sda 25ms" ]
        "The latency that others' disk use must not exceed.";

    device_policy =
      property "DevicePolicy" (values.choice [ "auto" "closed" "strict" ]) "closed"
        "Which devices it may open.";
    device_allow = property "DeviceAllow" values.devices [ "/dev/nvidia0 rw" ] "Devices that it may open.";

    oom_policy =
      property "OOMPolicy" (values.choice [ "continue" "stop" "kill" ]) "kill"
        "What happens when the kernel kills one of its processes for memory.";
    managed_oom_swap =
      property "ManagedOOMSwap" (values.choice [ "auto" "kill" ]) "kill"
        "Whether systemd-oomd may kill it when swap runs out.";
    managed_oom_memory_pressure =
      property "ManagedOOMMemoryPressure" (values.choice [ "auto" "kill" ]) "kill"
        "Whether systemd-oomd may kill it under memory pressure.";
    managed_oom_memory_pressure_limit =
      property "ManagedOOMMemoryPressureLimit" values.share "60%"
        "The pressure at which it may.";
    managed_oom_preference =
      property "ManagedOOMPreference" (values.choice [ "none" "avoid" "omit" ]) "avoid"
        "Whether systemd-oomd kills others first.";

    runtime_max = property "RuntimeMaxSec" values.time "12h" "The same as `timeout`.";
    timeout_stop =
      property "TimeoutStopSec" values.time "30s"
        "The time to end before it is killed.";
    stop_signal = property "KillSignal" values.signal "SIGINT" "The signal that asks its command to end.";
    kill_mode =
      property "KillMode" (values.choice [ "control-group" "mixed" ]) "mixed"
        "Who else gets that signal: all at once, or nobody until SIGKILL; by default the others are asked later.";
    send_sighup = property "SendSIGHUP" values.flag true "Whether they get SIGHUP as well.";
    send_sigkill = property "SendSIGKILL" values.flag false "Whether they are killed in the end.";
  };
  optionsOf = lib.mapAttrs (_: each: each.option);

  # A value in the form of a unit file. An empty quota is none.
  inUnitFile =
    name: found:
    if name == "cpu_quota" && found == "infinity" then
      ""
    else
      lib.concatMapStringsSep "," toString (lib.toList found);

  # The limits of a whole slice.
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
      Limits of all jobs in `${name}.slice` together. They become a drop-in of the slice;
      `systemd.slices.${name}.sliceConfig` overrides them.
    '' (optionsOf sliceProperties);

  # A table that has a meaning even if it is empty.
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
    args = key values.words [ "--device" "cuda" ] "Appended to the command's own arguments.";
    prepend = key values.words [ "--fast" ] "Inserted before them.";
    replace =
      key values.replacements
        {
          "--model" = "large";
          "--fp16" = false;
        }
        "New values of options that the command has. `false` removes one.";
    profile = key values.text "train" "Its profile; by default `gpu` in the mode gpu and `heavy` in the mode cpu.";
    max_jobs = key (values.count 1 null) 2 "How many of its jobs run at a time. They are counted by a slot, named ROUTE-DESTINATION.";
    vram = key values.gpuMemory "10G" "GPU memory of a job.";
    memory = key values.finiteMemory "6G" "Memory of a job, which is killed above this (`MemoryMax=`).";
    on_busy = key onBusy "wait" "What happens to a job that finds it busy; by default the route's `on_busy`.";
    exit_code = key values.exitCode 75 "The exit code of a blocked job; by default the route's `exit_code`.";
  };

  route = {
    description = key values.text "captions" "Its description in {command}`slicer routes`.";
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
        "The measurement of a job's input.";
    probe_command =
      key values.command [ "my-probe" "{}" ]
        "The command that prints the metric, for the probe `command`. `{}` is the input.";
    probe_timeout = key values.someTime "30s" "How long a probe may take.";
    tokens_per_word = key values.factor 1.3 "The number of tokens for each word, for the probe `tokens`.";
    input = key values.input (-1) "Which argument is the input. By default, the only one that names a file.";
    threshold = key values.bounds "1h" "The largest metric for the GPU; for several probes a list.";
    on_probe_error =
      key (values.choice [ "fail" "gpu" "cpu" ]) "cpu"
        "The destination of a job that cannot be measured.";
    on_gpu_oom =
      key (values.choice [ "fail" "cpu" ]) "cpu"
        "Whether a job that ran out of GPU memory runs again, on the CPU.";
    idempotent = key values.flag false "`false`: a job that has written something never runs again.";
    memory_reserve = key values.finiteMemory "2G" "The part of the machine's memory for all other uses, in {command}`slicer routes check`.";
    on_busy = key onBusy "wait" "What happens to a job whose destination is busy: it fails, waits, or goes to another one.";
    exit_code = key values.exitCode 75 "The exit code of a blocked job.";
    gpu = tableOrNone "The destination of inputs up to the threshold." destination;
    cpu = tableOrNone "The destination of all other inputs." destination;
    to = tablesOf "Any number of destinations, instead of `gpu`, `cpu` and `threshold`." (
      destination
      // {
        mode = key (values.choice [ "gpu" "cpu" ]) "gpu" "Whether its jobs get a GPU.";
        up_to = key values.bounds "10m" "The largest metric that it takes; by default, any.";
      }
    );
  };

  # A server of `slicer serve`.
  server = {
    kind =
      key (values.choice [ "ollama" "openai" "llamacpp" "comfyui" "raw" ]) "ollama"
        "Determines which requests need a GPU, and the form of errors; `openai` is vLLM, SGLang, TGI, and `raw` any HTTP server.";
    description = key values.text "chat for the lab" "A description for users.";
    listen = key values.words [ "127.0.0.1:11434" ] ''
      The addresses for clients: with a port, or `unix:` and the path of a socket. By default, the usual port of its kind.
    '';
    public = key values.flag true "Whether it may listen at addresses other than loopback's.";
    hosts = key values.words [ "gpu.example.org" ] "Allowed names in a request's Host header, besides localhost and addresses.";
    command = key values.command [ "ollama" "serve" ] ''
      Starts the server; `''${PORT}` in a word is the port that slicer chose. Without it, the server is already running at `upstream`.
    '';
    env = mkOption {
      type = types.attrsOf values.text;
      default = { };
      example = {
        OLLAMA_KEEP_ALIVE = "-1";
      };
      description = "Environment variables for the command. Every user can read them: no secrets here.";
    };
    upstream = key values.text "http://127.0.0.1:11435" "The server's address; with a command, by default a free port.";
    profile = key values.text "gpu" "The profile of its job, or of the lease.";
    gpus = key (values.count 1 null) 1 "How many GPUs a lease takes; by default the profile's number.";
    vram = key values.gpuMemory "20G" "Memory on each of them; by default the profile's.";
    models = key values.words [ "coder" ] "Of several servers at one address, this one takes requests with these in the JSON field `model`.";
    path = key values.text "/coder" "Of several, this one takes requests whose path begins with this.";
    default = key values.flag true "Of several, this one takes requests that are for none of the others.";
    ready_path = key values.text "/health" "The path that answers a GET once the server is ready; by default that of its kind.";
    ready_timeout = key values.someTime "10m" "How long it may take to become ready.";
    idle = key values.someTime "5m" "The time from the end of the last request to the return of the GPU.";
    min_hold = key values.finiteWait "30s" "How long it keeps its GPU although another server at the same address waits for it.";
    max_wait = key values.wait "10m" "How long a request waits for the lease; 0: not at all.";
    give_way = key values.flag false "Whether an idle server returns its GPU at once when another job waits for one.";
    release_timeout = key values.someTime "30s" "How long its end, or the unloading of its models, may take.";
    drain = key values.finiteWait "30s" "How long requests may continue after {command}`slicer serve` is told to end.";
    on_offload =
      key (values.choice [ "warn" "fail" ]) "fail"
        "For Ollama: what happens when a model lies partly in the machine's memory.";
    load_first = key values.flag false "For Ollama: whether slicer loads a model itself, before the request that needs it.";
    routes_gpu = key values.words [ "POST /extra" ] "Further requests that need a GPU.";
    routes_free = key values.words [ "POST /tokenize" ] "Further requests that need no GPU.";
    routes_allow = key values.words [ "/free" ] "Administrative paths that are forwarded nevertheless.";
    ignore_websockets = key values.flag true "Whether an open websocket does not count as a request.";
  };

  needs = {
    description = key values.text "nightly training" "Its description in {command}`slicer profiles`.";
    inherits = key values.text "gpu" ''
      The profile that provides the values not set here: one of these, or a built-in one (`light`, `heavy`, `gpu`).
    '';
    slice =
      key (values.choice [ "cpu" "gpu" ]) "gpu"
        "The slice of its jobs; by default it depends on their GPUs.";
    gpus = key (values.count 0 null) 1 "How many GPUs a job takes: whole ones, or with `vram` a part of each.";
    gpu = key values.gpus [ 0 1 ] "The only GPUs that it may use. A job takes all of them, or the number in `gpus`.";
    gpu_ids =
      key (values.choice [ "uuid" "index" ]) "index"
        "What `CUDA_VISIBLE_DEVICES` has of each GPU: its UUID, or its number, for programs that read nothing else.";
    vram = key values.gpuMemory "20G" "Memory to take on each GPU. Jobs that fit beside each other share it.";
    margin = key values.margin "1G" "Memory to keep free on each GPU in addition to `vram`.";
    share =
      key (values.choice [ "off" "lock" "cap" "both" ]) "both"
        "How its jobs share a GPU: their work takes turns (`lock`), `vram` is a hard limit (`cap`), or both.";
    share_mode = key values.shareMode "launches=10" "When the turn of a job ends; by default `yield`: when others wait.";
    share_skip_syncs = key (values.numberTo 1000000) 2 "Keep the turn over this number of synchronisations, for tests.";
    over_cap =
      key (values.choice [ "warn" "end" ]) "end"
        "What happens to a job that was seen to use more than its cap.";
    idle_timeout = key values.time "45m" "A job that does not use its GPUs for that time is warned.";
    on_idle =
      key (values.choice [ "warn" "stop" ]) "stop"
        "What follows the warning: nothing, or the job is ended one warning period later.";
    fence =
      key (values.choice [ "auto" "on" "off" ]) "off"
        "Whether its jobs can open no GPUs but their own; `on`: no job starts where that is impossible.";
    devices =
      key values.nvidiaDevices [ "/dev/nvidia-modeset" ]
        "Further device nodes of NVIDIA's, or groups such as `char-nvidia-caps-imex-channels`, that its jobs may open.";
    cpu_slots = key (values.count 0 null) 1 "How many CPU slots a job takes.";
    slots = mkOption {
      type = types.attrsOf (values.count 0 null);
      default = { };
      example = {
        license-matlab = 1;
      };
      description = "The slots that a job takes, by name. Names other than `cpu` are defined in `slots`.";
    };
    priority = key values.priority 10 "The waiting job with the highest priority goes first.";
    max_wait = key values.wait "2h" "A job waits no longer than this; 0: not at all.";
    "then" =
      key (values.choice [ "run" "fail" ]) "fail"
        "What happens to a job that has waited for `max_wait`.";
    threads = key (values.count 1 "auto") "auto" ''
      `OMP_NUM_THREADS` and the like. `"auto"`: one for each CPU within the limits.
    '';
    timeout = key values.time "12h" "A job is ended after this long.";
    grace = key values.time "2m" "The time that the command has to end before its other processes are asked.";
    linger =
      key values.flag true
        "Whether to wait for processes that outlive the command instead of ending them.";
    notify = key values.notifyWords [ "done" "desktop" ] "The events to report, instead of those in [notify].";
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
  slurmJobs = {
    partition = key values.text "main" "The partition.";
    qos = key values.text "normal" "The quality of service.";
    constraint = key values.text "a100" "Features that a node must have.";
    arguments = key values.words [ "--account=lab" ] "Further arguments of {command}`sbatch`.";
  };
in
{
  type = types.submodule {
    inherit freeformType;
    options = {
      default_profile = key values.text "heavy" "The profile of jobs without one.";
      compat_gpu_lock = key values.path "/tmp/gpu.lock" ''
        A lock file to hold with every lease on a GPU, for scripts that use {command}`flock` on it.
      '';
      slots = mkOption {
        type = types.submodule {
          freeformType = types.attrsOf (values.count 1 null);
          options.cpu = key (values.count 1 null) 4 "The number of slots: heavy CPU jobs at a time.";
        };
        default = { };
        description = "CPU slots, and counted slots of any other name: `license-matlab = 2`.";
      };
      gpu = table "How jobs share GPUs." {
        idle_threshold = key values.margin "200M" "A GPU with no more in use counts as idle.";
        margin = key values.margin "512M" "Memory to keep free in addition to a job's `vram`.";
        spike_buffer = key values.share "10%" "What other programs may use beyond their peak.";
      };
      waiting = table "How jobs take turns." {
        reserve_after = key values.reserveAfter "auto" ''
          After others have passed a job for this long, what it needs is kept for it.
        '';
        order = key (values.choice [ "auto" "arrival" ]) "auto" "Which of the jobs that wait for GPUs goes first.";
      };
      logs = table "The output of jobs that were started with `--detach`." {
        max_size = key values.gpuMemory "256M" "The most of a job's log that is kept; the beginning goes first.";
        keep = key values.wait "30d" "How long the logs of ended jobs stay.";
      };
      history = table "How jobs ended and what they used." {
        keep = key values.keep "1y" "How long that stays; at least a day.";
      };
      queue = table "{command}`slicer queue`." {
        shell = key values.text "bash" "The shell that runs the lines of jobs files, with `-c`.";
      };
      notify = table "Messages about the ends of jobs. Any user can read them, so put no passwords here." {
        on = key values.notifyWords [ "failed" "oom" ] "The events, and `desktop` as a destination.";
        command = key values.words [ "my-notify" ] "A command, which gets each event as JSON on its standard input.";
        urls = key values.words [ "ntfy://my-topic" ] "Addresses in apprise's syntax.";
      };
      engine = table "Where {command}`slicer queue --engine` may send jobs." {
        slurm = table "How these jobs ask Slurm for what they need." (
          slurmJobs
          // {
            gib_per_shard = key values.factor 1 "The memory of a GPU that one shard stands for; without it, jobs get whole GPUs.";
            slicer = key values.text "/opt/slicer/bin/slicer" "The command on the nodes.";
            profiles = tablesOf "The same, for the jobs of one profile." slurmJobs;
          }
        );
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
          of a built-in profile overrides its values and keeps the rest.
        '';
      };
      routes = tablesOf ''
        Routes, for {command}`slicer route NAME`: whether a job goes to the GPU or the CPU, by the size of its
        input.
      '' route;
      serve = tablesOf ''
        Servers, for {command}`slicer serve NAME`: each has a GPU only while it is in use. `programs.slicer.serve`
        makes systemd start them.
      '' server;
    };
  };

  builtinProfiles = [
    "gpu"
    "heavy"
    "light"
  ];

  # The settings of a slice in the form of systemd.slices.<name>.sliceConfig.
  sliceConfig =
    settings:
    lib.mapAttrs' (
      name: each: lib.nameValuePair each.directive (inUnitFile name settings.${name})
    ) (lib.filterAttrs (name: _: settings.${name} != null) sliceProperties);
}
