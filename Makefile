# `make demo` and `make test` work as the first command on a fresh machine: they set up .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PIP_CONSTRAINT := constraints.txt
# one thread per process: members run side by side
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test check docs bench bench-cpu bench-select study soak schedules attacks clean

demo: .venv/demo
	$(BIN)/hubless demo

test: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/dev
	$(BIN)/mkdocs build --strict

bench: .venv/dev
	$(BIN)/python benchmarks/federate.py

bench-cpu: .venv/dev
	$(BIN)/python benchmarks/simulate_cpu.py

bench-select: .venv/dev
	$(BIN)/python benchmarks/select.py

study: .venv/dev
	$(BIN)/python -m hubless.study.fedavg --out .cache/study

soak: .venv/dev
	$(BIN)/python -m tests.support.soak --members 200 --seconds 90

attacks: .venv/dev
	$(BIN)/python -m tests.attacks

schedules: .venv/dev
	$(BIN)/python -m tests.support.schedules --mode async --seeds 0:20000
	$(BIN)/python -m tests.support.schedules --mode sync --seeds 0:20000
	$(BIN)/python -m tests.support.schedules --mode select --seeds 0:20000
	$(BIN)/python -m tests.support.schedules --mode hostile-async --seeds 0:20000
	$(BIN)/python -m tests.support.schedules --mode hostile-sync --seeds 0:20000

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install --quiet -e '.[demo]'
	touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install --quiet -e '.[test,check]'
	touch $@ .venv/demo

clean:
	rm -rf .venv .cache .bench
