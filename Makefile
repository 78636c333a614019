# make check, make test, make run: on a fresh Debian machine, as root or as a user with sudo. All are safe to repeat.
VENV := .venv
PY := $(VENV)/bin/python
SUITE := trixie
MACHINE := namespace
# More arguments for pytest: make test ARGS='-k lease -x'; for the benchmark, what to measure: make bench ARGS=handoff
ARGS :=
# How many processes run this host's own tests beside the machines' (two, and an emulated one). With 0, pytest itself does.
WORKERS := 2
NIX_BUILD := tests/process/test_nix_build.py
# How long to soak, in seconds: make soak SOAK=60 ARGS='--seed 1'
SOAK := 600
FUZZ := 60

# What `slicer run --share` preloads. setup.py compiles it, and here it is compiled again when a source has changed.
LIBRARY := src/slicer/share/libslicer-share.so
PRELOAD := src/slicer/share/preload
# A newer compiler may warn of more, which must not keep a user from installing: so these are for the lint alone.
C_LINT := -Werror -Wshadow -Wstrict-prototypes -Wold-style-definition -Wformat=2 -Wundef \
	-Wpointer-arith -Wcast-qual -Wconversion -Wsign-conversion -Wvla -Wimplicit-fallthrough -fanalyzer

# Compiled modules are kept, whatever this shell has set: else each worker compiles all tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test lived-in check lib lint machine man run bench soak dist deb install clean

# With CI=true the check phase of Nix's package comes first: it is the unit tests once more, on all CPUs.
test: $(VENV)/stamp lint
	$(PY) -m tests.machines prepare
	$(if $(CI),$(PY) -m pytest --quiet $(NIX_BUILD))
	$(PY) -m pytest --both-pythons --workers $(WORKERS) $(if $(CI),--ignore=$(NIX_BUILD)) $(ARGS)

# This host's own rings, on this host as a user might have set it up: NVIDIA's nodes, /etc/slicer, a history, variables.
# Needs root. With CI=true also the slow tests.
lived-in: $(LIBRARY)
	$(PY) -m tests.machines.lived_in $(PY) -m pytest --quiet -p no:cacheprovider --numprocesses 4 \
		-m "$(if $(CI),,not slow and )not systemd and not enforced" tests/unit tests/process \
		--ignore=$(NIX_BUILD) $(ARGS)

# For the hand, in less than a minute: what needs no machine and starts few processes, on all CPUs. Properties are tried
# with fewer examples.
check: lint
	$(PY) -m pytest --quiet --numprocesses logical -m "not slow" tests/unit $(ARGS)

lint: $(LIBRARY) build/lint/stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo --no-cache
	$(PY) -m tools.budget

build/lint/stamp: Makefile $(LIBRARY) src/launcher/launcher.c
	CFLAGS="$(C_LINT)" $(PY) -W ignore setup.py --quiet build_ext --force --build-lib build/lint \
		build_scripts --build-dir build/lint/bin
	touch $@

lib: $(LIBRARY)

# The folder too: a source may be gone.
$(LIBRARY): setup.py $(PRELOAD) $(wildcard $(PRELOAD)/*.[ch]) | $(VENV)/stamp
	$(PY) -W ignore setup.py --quiet build_ext --force --inplace --build-lib build/lib-share

machine: $(VENV)/stamp
	@$(PY) -m tests.machines prepare
	@$(PY) -m tests.machines shell --suite $(SUITE) --machine $(MACHINE)

# The manual pages in man/, from the commands' help and the texts in docs/man. They are committed.
man: $(VENV)/stamp
	$(PY) -m tools.manpages

run: $(LIBRARY)
	sh tools/demo.sh $(VENV)

bench: $(VENV)/stamp
	$(PY) -m bench $(ARGS)

# Broken files for a minute, and none does harm; jobs killed at random for minutes, and nothing given away twice or
# lost.
soak: $(LIBRARY)
	$(PY) -m tests.soak.fuzz --seconds $(FUZZ)
	$(PY) -m tests.soak.share_fuzz --seconds $(FUZZ)
	$(PY) -m tests.soak --seconds $(SOAK) $(ARGS)
	$(PY) -m tests.soak.broker_soak --seconds $(SOAK)

# What a release consists of: slicer's and slicer_client's sdists and the wheels, built from these; and the Debian package,
# also from the sdist.
dist: $(VENV)/stamp
	rm -rf dist
	$(PY) -m build
	$(PY) -m build --outdir dist slicer-client

deb: dist
	rm -rf build/deb
	mkdir -p build/deb
	tar -C build/deb -xf dist/slicer_systemd-*.tar.gz
	cd build/deb/slicer_systemd-* && debian/rules pynvml && dpkg-buildpackage -b -us -uc
	mv build/deb/slicer-systemd[_-]* dist/

install: $(LIBRARY)
	$(VENV)/bin/slicer install

$(VENV)/stamp: pyproject.toml setup.py tools/venv.sh
	sh tools/venv.sh $(VENV)

# The machines' images stay in the user's cache; see tests/machines/README.md.
clean:
	rm -rf $(VENV) $(LIBRARY) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf slicer-client/build slicer-client/*.egg-info slicer-client/.*_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
