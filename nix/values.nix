# The kinds of values in slicer's configuration, as option types. They take what src/slicer/config takes, in
# the spelling that systemd takes as well, and say in a refusal what was expected. What only the whole file
# can tell, slicer itself checks when the system is built (see `checkConfig` in module.nix).
{ lib }:

let
  inherit (builtins)
    fromJSON
    isAttrs
    isBool
    isFloat
    isInt
    isList
    isString
    match
    ;

  value =
    name: description: check:
    lib.mkOptionType {
      inherit name description check;
      descriptionClass = "noun";
      merge = lib.mergeEqualOption;
    };

  between =
    low: high: found:
    isInt found && low <= found && found <= high;
  matches = pattern: found: isString found && match pattern found != null;
  oneOrMore = check: found: isList found && found != [ ] && lib.all check found;

  # "12" or "12.5", and what follows it; null for what does not begin with a number.
  split =
    found:
    let
      parts = match "((0|[1-9][0-9]{0,14})(\\.[0-9]{1,6})?) ?([a-zA-Zµ%]*)" found;
    in
    if !isString found || parts == null then
      null
    else
      {
        number = fromJSON (lib.head parts);
        unit = lib.last parts;
      };
  scaled =
    factors: found:
    let
      parts = split found;
    in
    if !isString found || parts == null || !(factors ? ${parts.unit}) then
      null
    else
      parts.number * factors.${parts.unit};

  # Floats, which do not overflow.
  mebibyte = 1048576.0;
  bytes = scaled {
    "" = 1.0;
    K = 1024.0;
    M = mebibyte;
    G = 1024.0 * mebibyte;
    T = 1024.0 * 1024.0 * mebibyte;
    P = 1024.0 * 1024.0 * 1024.0 * mebibyte;
  };
  # At most two digits after the point.
  percent = found: if matches "[0-9]+(\\.[0-9]{1,2})?%" found then scaled { "%" = 1; } found else null;

  percentBetween =
    low: high: found:
    percent found != null && low <= percent found && percent found <= high;

  most = 9.0e18; # the kernel's and systemd's parsers stop at a signed 64-bit number
  size =
    least: found:
    (isInt found && found >= least)
    || found == "infinity"
    || (percentBetween 0 100 found && (percent found > 0 || least == 0))
    || (matches "[0-9]+|[0-9.]+[KMGTP]" found && sizeBetween least found);
  sizeBetween = least: found: bytes found != null && least <= bytes found && bytes found <= most;

  # Sizes of GPU memory: a bare number could mean bytes or MiB.
  withUnit = found: found == "0" || (matches "[0-9.]+[KMGTP]" found && sizeBetween 0 found);

  units = "us|usec|ms|msec|s|sec|second|seconds|m|min|minute|minutes|h|hr|hour|hours|d|day|days|w|week|weeks|y|year|years";
  isDuration =
    found:
    ((isInt found || isFloat found) && found >= 0)
    || matches "[0-9]+(\\.[0-9]+)?|([0-9]+(\\.[0-9]+)? ?(${units}) ?)+" found;
  isZero = found: found == 0 || matches "[0.]+ ?(${units})?" found;

  # Lists of directives that may be given several times; a single one needs no list.
  entries = pattern: found: matches pattern found || oneOrMore (matches pattern) found;
  path = "/[^ \n]*";

  isBound =
    found:
    ((isInt found || isFloat found) && found >= 0)
    || found == "infinity"
    || matches "[0-9]+(\\.[0-9]+)? ?[a-zA-Z0-9 .]*" found;

  cpus = "[0-9]{1,4}(-[0-9]{1,4})?([, ][0-9]{1,4}(-[0-9]{1,4})?)*";
  isGpu = found: between 0 8191 found || matches "[0-9]{1,4}|[A-Za-z][A-Za-z0-9-]{0,79}" found;
in
{
  # A key that is left out of the file as long as it is null.
  key =
    type: example: description:
    lib.mkOption {
      type = lib.types.nullOr type;
      default = null;
      inherit description example;
    };

  text = value "text" "text without line breaks" (matches "[^\n]*");

  path = value "path" "absolute path" (matches "/[^\n]*");

  flag = value "flag" "true or false" isBool;

  choice =
    words:
    value "choice" "one of ${lib.concatMapStringsSep ", " (word: ''"${word}"'') words}" (
      found: lib.elem found words
    );

  count =
    least: also:
    value "count"
      "whole number, ${toString least} or more${
        lib.optionalString (also != null) '', or "${also}"''
      }"
      (found: between least 8192 found || (also != null && found == also));

  numberTo = most: value "number-to" "whole number from 0 to ${toString most}" (between 0 most);

  exitCode = value "exit-code" "whole number from 1 to 255" (between 1 255);

  factor = value "factor" "number above 0, 1000 at most" (
    found: (isInt found || isFloat found) && found > 0 && found <= 1000
  );

  # Of a route: what it measures, and up to where.
  probes =
    words:
    value "probes" "one of ${lib.concatMapStringsSep ", " (word: ''"${word}"'') words}, or a list of these" (
      found: lib.elem found words || oneOrMore (word: lib.elem word words) found
    );

  bounds = value "bounds" ''number, or text with a unit such as "1h", "2G" or "8MP", or a list of these'' (
    found: isBound found || oneOrMore isBound found
  );

  input =
    value "input" ''index from 1 or from -1, the last, option such as "--audio", glob such as "*.mp4", or "stdin"''
      (
        found:
        (isInt found && found != 0)
        || found == "stdin"
        || (matches "-[^= \n]+" found && !matches "[-0-9]+" found)
        || matches "[^-]*[*?[].*" found
      );

  notifyWords = value "notifyWords" "list of done, failed, oom, waited, queue-done and desktop, or [ \"off\" ]" (
    oneOrMore (
      lib.flip lib.elem [
        "done"
        "failed"
        "oom"
        "waited"
        "queue-done"
        "desktop"
        "off"
      ]
    )
  );

  words = value "words" "list of texts" (found: isList found && lib.all isString found);

  command = value "command" ''list of texts such as [ "my-probe" "{}" ]'' (oneOrMore isString);

  replacements = value "replacements" "options, each with its new value, or false to remove it" (
    found:
    isAttrs found
    && lib.all (each: isString each || isInt each || each == false) (lib.attrValues found)
    && lib.all (matches "-[^= \n]+=?") (lib.attrNames found)
  );

  finiteMemory = value "finite-memory" ''size such as "8G" or "50%", 1M or more'' (
    found: found != "infinity" && size mebibyte found
  );

  someTime = value "some-time" ''seconds above 0, or a duration such as "30s"'' (
    found: isDuration found && !isZero found
  );

  priority = value "priority" "whole number from -100 to 100" (between (-100) 100);

  weight = value "weight" "whole number from 1 to 10000" (between 1 10000);

  cpuWeight = value "cpu-weight" ''whole number from 1 to 10000, or "idle"'' (
    found: between 1 10000 found || found == "idle"
  );

  quota = value "quota" ''percentage of one CPU, above 0, such as "300%", or "infinity"'' (
    found:
    found == "infinity" || (percentBetween 0 1000000 found && percent found > 0)
  );

  period = value "period" ''duration from 1ms to 1s such as "10ms"'' (
    found:
    let
      us = scaled {
        us = 1;
        ms = 1000;
        s = 1000000;
      } found;
    in
    us != null && 1000 <= us && us <= 1000000
  );

  memory = value "memory" ''size such as "8G", "50%" or "infinity", 1M or more'' (size mebibyte);

  anyMemory = value "any-memory" ''size such as "8G", "50%", "infinity" or 0'' (size 0);

  gpuMemory = value "gpu-memory" ''size with its unit such as "8G" or "500M", above 0'' (
    found: withUnit found && bytes found > 0
  );

  margin = value "margin" ''size with its unit such as "8G" or "500M", or "0"'' withUnit;

  # A cap of the policy: "infinity" takes one away that a wider rule sets.
  cap =
    type:
    value "cap" ''${type.description}, or "infinity"'' (
      found: type.check found || found == "infinity"
    );

  share = value "share" ''percentage from 0% to 100% such as "10%"'' (percentBetween 0 100);

  tasks = value "tasks" ''whole number from 1 to 4194304, a percentage such as "10%", or "infinity"'' (
    found:
    between 1 4194304 found
    || found == "infinity"
    || (percentBetween 0 100 found && percent found > 0 && percent found < 100)
  );

  time = value "time" ''seconds above 0, or a duration such as "90s", "1h30m" or "infinity"'' (
    found: found == "infinity" || (isDuration found && !isZero found)
  );

  wait = value "wait" ''seconds, or a duration such as "0", "15m" or "infinity"'' (
    found: found == "infinity" || isDuration found
  );

  keep = value "keep" ''"forever", or a duration such as "90d" or "1y"'' (
    found: found == "forever" || found == "infinity" || (isDuration found && !isZero found)
  );

  finiteWait = value "finite-wait" ''seconds, or a duration such as "5m"'' isDuration;

  reserveAfter = value "reserve-after" ''"auto", seconds, or a duration such as "5m"'' (
    found: found == "auto" || isDuration found
  );

  shareMode =
    value "share-mode" ''"yield", "each", "launches=10" or "time=5ms", 1ms to 60s'' (
      found:
      let
        ms = scaled {
          ms = 1;
          s = 1000;
        } (lib.removePrefix "time=" found);
      in
      lib.elem found [
        "yield"
        "each"
        "launches"
      ]
      || (
        matches "launches=[1-9][0-9]{0,6}" found
        && between 1 1000000 (fromJSON (lib.removePrefix "launches=" found))
      )
      || (matches "time=.*" found && ms != null && 1 <= ms && ms <= 60000)
    );

  cpus = value "cpus" ''CPU list such as "0-3,8" or [ 0 1 ]'' (
    found: matches cpus found || oneOrMore (between 0 8191) found
  );

  nodes = value "nodes" ''list of memory nodes such as "0-1" or [ 0 1 ]'' (
    found: matches cpus found || oneOrMore (between 0 8191) found
  );

  gpus = value "gpus" ''GPUs by index or UUID such as "0,1", [ 0 1 ] or "GPU-5a3c"'' (
    found:
    isGpu found
    || oneOrMore isGpu found
    || (isString found && lib.all isGpu (lib.splitString "," found))
  );

  nvidiaDevices = value "nvidia-devices" ''list of NVIDIA's nodes such as [ "/dev/nvidia-modeset" ]'' (
    found:
    isList found
    && lib.all (
      each:
      matches "(/dev/|char-)nvidia[A-Za-z0-9/_.-]{0,180}" each && !lib.hasInfix ".." each && !lib.hasInfix "//" each
    ) found
  );

  uids = value "uids" ''list of uids such as "100000-199999,300000"'' (
    found: matches "([0-9]{1,10}(-[0-9]{1,10})?(, ?[0-9]{1,10}(-[0-9]{1,10})?)*)?" found
  );

  signal = value "signal" ''signal such as "SIGTERM"'' (
    found: between 1 64 found || matches "(SIG)?[A-Z][A-Z0-9+-]*" found
  );

  ioWeights = value "io-weights" ''list such as [ "/dev/sda 200" ]'' (
    entries "${path} +(10000|[1-9][0-9]{0,3})"
  );

  ioRates = value "io-rates" ''list such as [ "/dev/sda 10M" ], rates above 0'' (
    entries "${path} +([1-9][0-9]*(\\.[0-9]+)?[KMGTP]?|infinity)"
  );

  ioLatencies = value "io-latencies" ''list such as [ "/dev/sda 25ms" ]'' (
    entries "${path} +[1-9][0-9]*(\\.[0-9]+)? ?(${units})?"
  );

  devices = value "devices" ''list such as [ "/dev/nvidia0 rw" ]'' (
    entries "(/dev/|char-|block-)[^ \n]*( +[rwm]+)?"
  );

  variable = value "variable" "text or whole number, or false to remove an inherited variable" (
    found: isString found || isInt found || found == false
  );
}
