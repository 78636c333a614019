# make check, make test, make run: on a fresh Debian machine, as root or as a user with sudo. All are safe to repeat.
VENV := .venv
PY := $(VENV)/bin/python
SUITE := trixie
MACHINE := namespace
# More arguments for pytest: make test ARGS='-k lease -x'; for the benchmark, what to measure: make bench ARGS=handoff
ARGS :=
# How long to soak, in seconds: make soak SOAK=60 ARGS='--seed 1'
SOAK := 600
FUZZ := 60

.PHONY: test check lint machine run bench soak install clean

test: $(VENV)/stamp lint
	$(PY) -m tests.machines prepare
	$(PY) -m pytest --both-pythons $(ARGS)

# For the hand, in less than a minute: what needs no machine and starts few processes, on all CPUs.
check: lint
	$(PY) -m pytest --quiet --numprocesses logical tests/unit $(ARGS)

lint: $(VENV)/stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo --no-cache

machine: $(VENV)/stamp
	@$(PY) -m tests.machines prepare
	@$(PY) -m tests.machines shell --suite $(SUITE) --machine $(MACHINE)

run: $(VENV)/stamp
	sh tools/demo.sh $(VENV)

bench: $(VENV)/stamp
	$(PY) -m bench $(ARGS)

# Broken files for a minute, and none does harm; jobs killed at random for minutes, and nothing given away twice or
# lost.
soak: $(VENV)/stamp
	$(PY) -m tests.soak.fuzz --seconds $(FUZZ)
	$(PY) -m tests.soak --seconds $(SOAK) $(ARGS)

install: $(VENV)/stamp
	$(VENV)/bin/slicer install

$(VENV)/stamp: pyproject.toml tools/venv.sh
	sh tools/venv.sh $(VENV)

# The machines' images stay in the user's cache; see tests/machines/README.md.
clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
