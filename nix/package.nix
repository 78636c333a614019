{
  lib,
  python3Packages,
  util-linux,
  writableTmpDirAsHomeHook,
}:

python3Packages.buildPythonApplication {
  # "slicer" on the package index is a library that shap needs.
  pname = "slicer-systemd";
  version = lib.head (
    lib.match ".*__version__ = \"([^\"]+)\".*" (lib.readFile ../src/slicer/version.py)
  );
  pyproject = true;

  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../bench
      ../CONTRIBUTING.md
      ../LICENSE
      ../README.md
      ../bin
      ../completions
      ../docs
      ../man
      ../nix/keys.json
      ../pyproject.toml
      ../setup.py
      ../slicer-client
      ../src
      ../tests
      ../tools
      ../units
    ];
  };

  build-system = [ python3Packages.setuptools ];

  # nixpkgs' nvidia-ml-py finds the driver's library in /run/opengl-driver by itself.
  dependencies = [
    python3Packages.aiohttp # for `slicer serve` and `slicer web`
    python3Packages.click
    python3Packages.nvidia-ml-py
    python3Packages.prometheus-client # for `slicer metrics`
    python3Packages.psutil
    python3Packages.pystemd
  ];

  # Units, catalog, completions and manual pages, without the drop-in that delegates to users.
  postInstall = ''
    files="$out/${python3Packages.python.sitePackages}/slicer"
    # With the units of the broker, the board and the metrics, which nothing starts unless the module says so. The
    # module mounts the place of users' ledgers by itself.
    install -D -m 644 -t "$out/lib/systemd/system" "$files"/_units/system/*.slice "$files"/_units/system/slicer-*
    install -D -m 644 -t "$out/lib/systemd/user" "$files"/_units/user/*.slice "$files"/_units/user/slicer-*
    install -D -m 644 -t "$out/lib/systemd/catalog" "$files/_units/catalog/slicer.catalog"
    install -D -m 644 "$files/_completions/slicer.bash" "$out/share/bash-completion/completions/slicer"
    install -D -m 644 -t "$out/share/zsh/site-functions" "$files/_completions/_slicer"
    install -D -m 644 -t "$out/share/fish/vendor_completions.d" "$files/_completions/slicer.fish"
    for section in 1 5 8; do
      install -D -m 644 -t "$out/share/man/man$section" "$files"/_man/*.$section
    done
    sed -i "s|/usr/lib/slicer-systemd/slicer-broker|$out/bin/slicer-broker|" \
      "$out/lib/systemd/system/slicer-broker."*
    sed -i "s|/usr/bin/slicer\>|$out/bin/slicer|" \
      "$out/lib/systemd/system/slicer-web."* "$out/lib/systemd/system/slicer-metrics."* \
      "$out/lib/systemd/"{system,user}/slicer-queues.service
  '';

  # The usual wrapper puts Python and the libraries of slicer into PATH and sets PYTHONNOUSERSITE, and all jobs
  # would inherit both. So the scripts find their modules by themselves. -I has Python leave out the user's, and -S
  # has it start faster.
  env.SLICER_BUILD_LAUNCHER = "no";
  dontWrapPythonPrograms = true;
  postFixup = ''
    buildPythonPath "$out"
    for script in "$out/bin/slicer" "$out/bin/slicer-broker"; do
      patchPythonScript "$script"
      sed -i '1s/$/ -IS/' "$script"
    done
  '';

  nativeCheckInputs = [
    python3Packages.hypothesis
    python3Packages.pytest-xdist
    python3Packages.pytestCheckHook
    util-linux # flock
    writableTmpDirAsHomeHook
  ];
  enabledTestPaths = [ "tests/unit" ];
  # Fewer examples of each property, and not what takes seconds: as `make check`.
  env.SLICER_TEST_QUICK = "1";
  disabledTestMarks = [ "slow" ];
  disabledTestPaths = [
    "tests/unit/surface" # compares with a copy in which Python is called python
    "tests/unit/queue/file/test_jobs_file_oracle.py" # compares with gpusched, which nixpkgs does not have
  ];
  # It wants an installed slicer-broker.
  disabledTests = [ "test_what_an_installation_means_is_not_cut" ];
  pythonImportsCheck = [ "slicer" ];

  meta = {
    description = "Run commands in systemd scopes, with leases on GPUs and CPU slots";
    license = lib.licenses.mit;
    mainProgram = "slicer";
    platforms = lib.platforms.linux;
  };
}
