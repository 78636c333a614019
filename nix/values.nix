# The kinds of values in slicer's configuration, as option types. They take what src/slicer/config takes, in
# the spelling that systemd takes as well, and say in a refusal what was expected. What only the whole file
# can tell, slicer itself checks when the system is built (see `checkConfig` in module.nix).
{ lib }:

let
  # All keys: [ KIND EXAMPLE DESCRIPTION ], a kind being the name of one below or the words to choose from.
  # `python -m tests.unit.nix` writes the file from the tables of src/slicer/config and the manual pages.
  keys = lib.importJSON ./keys.json;

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

  is =
    description: check: name:
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

  number = "((0|[1-9][0-9]{0,14})(\\.[0-9]{1,6})?)";
  mebibyte = 1048576.0; # floats, which do not overflow
  factors = { "" = 1.0; K = 1024.0; M = mebibyte; G = 1024 * mebibyte; T = 1024 * factors.G; P = 1024 * factors.T; };
  bytes =
    found:
    let
      parts = if isString found then match "${number}([KMGTP]?)" found else null;
    in
    if parts == null then null else fromJSON (lib.head parts) * factors.${lib.last parts};
  # At most two digits after the point.
  percent =
    found:
    if matches "(0|[1-9][0-9]{0,14})(\\.[0-9]{1,2})?%" found then fromJSON (lib.removeSuffix "%" found) else null;

  percentBetween =
    low: high: found:
    percent found != null && low <= percent found && percent found <= high;

  most = 9.0e18; # the kernel's and systemd's parsers stop at a signed 64-bit number
  size =
    least: found:
    (isInt found && found >= least)
    || found == "infinity"
    || (percentBetween 0 100 found && (percent found > 0 || least == 0))
    || sizeBetween least found;
  sizeBetween = least: found: bytes found != null && least <= bytes found && bytes found <= most;

  # Sizes of GPU memory: a bare number could mean bytes or MiB.
  withUnit = found: found == "0" || (matches ".*[KMGTP]" found && sizeBetween 0 found);

  units = "us|usec|ms|msec|s|sec|second|seconds|m|min|minute|minutes|h|hr|hour|hours|d|day|days|w|week|weeks|y|year|years";
  isDuration =
    found:
    (isNumber found && found >= 0)
    || matches "[0-9]+(\\.[0-9]+)?|([0-9]+(\\.[0-9]+)? ?(${units}) ?)+" found;
  isNumber = found: isInt found || isFloat found;
  isSomeTime = found: isDuration found && !isZero found;
  isZero = found: found == 0 || matches "[0.]+ ?(${units})?" found;

  # Lists of directives that may be given several times; a single one needs no list.
  entries = pattern: found: matches pattern found || oneOrMore (matches pattern) found;
  path = "/[^ \n]*";

  isBound =
    found:
    (isNumber found && found >= 0)
    || found == "infinity"
    || matches "[0-9]+(\\.[0-9]+)? ?[a-zA-Z0-9 .]*" found;

  turn = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|60000) ?ms|([1-9]|[1-5][0-9])(\\.[0-9]+)? ?s|0?\\.[0-9]+ ?s|60 ?s";
  cpus = "[0-9]{1,4}(-[0-9]{1,4})?([, ][0-9]{1,4}(-[0-9]{1,4})?)*";
  isCpus = found: matches cpus found || oneOrMore (between 0 8191) found;
  areWords = found: isList found && lib.all isString found;
  isGpu = found: between 0 8191 found || matches "[0-9]{1,4}|[A-Za-z][A-Za-z0-9-]{0,79}" found;

  quoted = words: lib.concatMapStringsSep ", " (word: ''"${word}"'') words;
  oneOf = words: found: lib.elem found words;

  kinds = lib.mapAttrs (name: type: type name) {
    text = is "text without line breaks" (matches "[^\n]*");
    word = is "word" (matches "[^- \n][^ \n]*");
    path = is "absolute path" (matches "/[^\n]*");
    upstream = is ''address such as "http://127.0.0.1:11435"'' (matches "http://[^ \n]*:[0-9]+/*");
    url-path = is ''path such as "/health"'' (matches "(/[^\n]*)?");
    flag = is "true or false" isBool;
    bool = kindOf.flag;

    count = is "whole number, 0 or more" (between 0 8192);
    some-count = is "whole number, 1 or more" (between 1 8192);
    threads = is ''whole number, 1 or more, or "auto"'' (found: between 1 8192 found || found == "auto");
    syncs = is "whole number from 0 to 1000000" (between 0 1000000);
    exit-code = is "whole number from 1 to 255" (between 1 255);
    priority = is "whole number from -100 to 100" (between (-100) 100);
    weight = is "whole number from 1 to 10000" (between 1 10000);
    cpu-weight = is ''whole number from 1 to 10000, or "idle"'' (found: between 1 10000 found || found == "idle");
    factor = is "number above 0, 1000 at most" (found: isNumber found && found > 0 && found <= 1000);
    user-weight = kindOf.factor;

    # Of a route: what it measures, and up to where.
    probes = is "one of ${quoted keys.words.probes}, or a list of these" (
      found: oneOf keys.words.probes found || oneOrMore (oneOf keys.words.probes) found
    );
    bounds = is ''number, or text with a unit such as "1h", "2G" or "8MP", or a list of these'' (
      found: isBound found || oneOrMore isBound found
    );
    input = is ''index from 1 or from -1, the last, option such as "--audio", glob such as "*.mp4", or "stdin"'' (
      found:
      (isInt found && found != 0)
      || found == "stdin"
      || (matches "-[^= \n]+" found && !matches "[-0-9]+" found)
      || matches "[^-]*[*?[].*" found
    );
    replacements = is "options, each with its new value, or false to remove it" (
      found:
      isAttrs found
      && lib.all (each: isString each || isInt each || each == false) (lib.attrValues found)
      && lib.all (matches "-[^= \n]+=?") (lib.attrNames found)
    );

    events = is "list of ${lib.concatStringsSep ", " keys.words.events}" (oneOrMore (oneOf keys.words.events));
    words = is "list of texts" areWords;
    addresses = kindOf.words;
    arguments = kindOf.words;
    requests = kindOf.words;
    urls = kindOf.words;
    command = is ''list of texts such as [ "my-probe" "{}" ]'' (oneOrMore isString);
    command-line = is "text, or list of texts" (found: matches ".+" found || oneOrMore isString found);

    quota = is ''percentage of one CPU, above 0, such as "300%", or "infinity"'' (
      found: found == "infinity" || (percentBetween 0 1000000 found && percent found > 0)
    );
    pressure = is ''percentage from 0% to 100% such as "10%"'' (percentBetween 0 100);
    fraction = kindOf.pressure;
    tasks = is ''whole number from 1 to 4194304, a percentage such as "10%", or "infinity"'' (
      found:
      between 1 4194304 found
      || found == "infinity"
      || (percentBetween 0 100 found && percent found > 0 && percent found < 100)
    );

    memory = is ''size such as "8G", "50%" or "infinity", 1M or more'' (size mebibyte);
    memory-any = is ''size such as "8G", "50%", "infinity" or 0'' (size 0);
    finite-memory = is ''size such as "8G" or "50%", 1M or more'' (found: found != "infinity" && size mebibyte found);
    gpu-memory = is ''size with its unit such as "8G" or "500M", or "0"'' withUnit;
    some-gpu-memory = is ''size with its unit such as "8G" or "500M", above 0'' (
      found: withUnit found && bytes found > 0
    );

    time = is ''seconds above 0, or a duration such as "90s", "1h30m" or "infinity"'' (
      found: found == "infinity" || isSomeTime found
    );
    some-time = is ''seconds above 0, or a duration such as "30s"'' isSomeTime;
    half-life = kindOf.some-time;
    wait = is ''seconds, or a duration such as "0", "15m" or "infinity"'' (
      found: found == "infinity" || isDuration found
    );
    finite-wait = is ''seconds, or a duration such as "5m"'' isDuration;
    keep = is ''"forever", or a duration such as "90d" or "1y"'' (
      found: found == "forever" || found == "infinity" || isSomeTime found
    );
    auto-time = is ''"auto", seconds, or a duration such as "5m"'' (found: found == "auto" || isDuration found);
    period = is ''duration from 1ms to 1s such as "10ms"'' (
      matches "([1-9][0-9]{0,2}(\\.[0-9]+)?|1000) ?ms|0?\\.[0-9]+ ?s|1 ?s|([1-9][0-9]{3,5}|1000000) ?us"
    );
    share-mode = is ''"yield", "each", "launches=10" or "time=5ms", 1ms to 60s'' (
      matches "yield|each|launches(=([1-9][0-9]{0,5}|1000000))?|time=(${turn})"
    );

    retry = is ''"any:2", "gpu:5" or "any:2,gpu:5"'' (
      matches " *(any|gpu):[0-9]{1,9} *(, *(any|gpu):[0-9]{1,9} *)*"
    );

    cpus = is ''CPU list such as "0-3,8" or [ 0 1 ]'' isCpus;
    nodes = is ''list of memory nodes such as "0-1" or [ 0 1 ]'' isCpus;
    gpus = is ''GPUs by index or UUID such as "0,1", [ 0 1 ] or "GPU-5a3c"'' (
      found:
      isGpu found
      || oneOrMore isGpu found
      || (isString found && lib.all isGpu (lib.splitString "," found))
    );
    nvidia-devices = is ''list of NVIDIA's nodes such as [ "/dev/nvidia-modeset" ]'' (
      found:
      isList found
      && lib.all (
        each:
        matches "(/dev/|char-)nvidia[A-Za-z0-9/_.-]{0,180}" each && !lib.hasInfix ".." each && !lib.hasInfix "//" each
      ) found
    );
    uids = is ''list of uids such as "100000-199999,300000"'' (
      matches "([0-9]{1,10}(-[0-9]{1,10})?(, ?[0-9]{1,10}(-[0-9]{1,10})?)*)?"
    );
    signal = is ''signal such as "SIGTERM"'' (found: between 1 64 found || matches "(SIG)?[A-Z][A-Z0-9+-]*" found);
    io-weights = is ''list such as [ "/dev/sda 200" ]'' (entries "${path} +(10000|[1-9][0-9]{0,3})");
    io-sizes = is ''list such as [ "/dev/sda 10M" ], rates above 0'' (
      entries "${path} +([1-9][0-9]*(\\.[0-9]+)?[KMGTP]?|infinity)"
    );
    io-times = is ''list such as [ "/dev/sda 25ms" ]'' (entries "${path} +[1-9][0-9]*(\\.[0-9]+)? ?(${units})?");
    devices = is ''list such as [ "/dev/nvidia0 rw" ]'' (entries "(/dev/|char-|block-)[^ \n]*( +[rwm]+)?");

    variables = _: lib.types.attrsOf variable;
    slots = _: lib.types.attrsOf kinds.count;
  };
  kindOf = lib.mapAttrs (_: type: _: type) kinds;
  variable = is "text or whole number, or false to remove an inherited variable" (
    found: isString found || isInt found || found == false
  ) "variable";

  typeOf =
    kind:
    if isList kind then
      is "one of ${quoted kind}" (oneOf kind) "choice"
    else if lib.hasPrefix "cap:" kind then
      cap kinds.${lib.removePrefix "cap:" kind}
    else
      kinds.${kind};
  # A cap of the policy: "infinity" takes one away that a wider rule sets.
  cap =
    type: is ''${type.description}, or "infinity"'' (found: type.check found || found == "infinity") "cap";

  # A key that is left out of the file as long as it is null.
  option =
    row:
    lib.mkOption {
      type = lib.types.nullOr (typeOf (lib.head row));
      default = null;
      example = lib.elemAt row 1;
      description = lib.elemAt row 2;
    };
in
{
  inherit keys kinds;
  options = lib.mapAttrs (_: option);
}
