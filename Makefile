# Everything sets itself up: a venv in .venv, the dependencies, the package with its native kernels.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(shell find src native -type f \( -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.html' -o -name py.typed \) 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench bench-training fuzz chaos format clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/deps.stamp: requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -r requirements-dev.txt
	$(BIN)/pip install --quiet --no-deps recbole==1.2.1  # only for the ratings that lie in it
	touch $@

$(VENV)/package.stamp: $(VENV)/deps.stamp $(SOURCES)
	$(BIN)/pip install --quiet --force-reinstall --no-deps .
	touch $@

setup: $(VENV)/package.stamp ## create the venv, install everything, build the kernels

demo: setup ## four workers train over slow links: a table and a figure
	$(BIN)/sumwire demo

# What starts many processes to test training, servers and links, or trains and fits models, says nothing new about kernels.
TRAINING := tests/train tests/estimators tests/aggregate/server tests/codec/test_accuracy.py $(addprefix tests/lab/test_,mean.py contest.py demo.py launch.py lhc.py links.py workloads.py workload_sums.py)

# Pure computation, which two processes share; what starts processes itself is tested one by one.
PURE := tests/codec tests/kernels tests/mean tests/wire
REFERENCE := SUMWIRE_KERNELS=reference HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest

test: setup ## the whole suite on the native kernels, then what depends on them on the reference
	$(BIN)/python -m pytest -n 2 $(PURE)
	$(BIN)/python -m pytest tests $(PURE:%=--ignore=%)
	$(REFERENCE) -n 2 $(PURE) $(TRAINING:%=--ignore=%)
	$(REFERENCE) tests $(PURE:%=--ignore=%) $(TRAINING:%=--ignore=%)

check: setup ## ruff, mypy --strict, import-linter, clang-format
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror native/*.cpp native/*.h

bench: setup ## speed and accuracy, as in docs/benchmarks.md
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kernels --runs 3
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.exchange
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sparse_kernels
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sketch
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mean
	$(BIN)/python -m benchmarks.sparse_bytes
	$(BIN)/python -m benchmarks.sparse_training
	$(BIN)/python -m benchmarks.server throughput
	$(BIN)/python -m benchmarks.server cpu
	$(BIN)/python -m benchmarks.server latency

bench-training: setup ## an hour: time to target on slow links, and the evidence for the defaults
	$(BIN)/python -m benchmarks.time_to_target
	$(BIN)/python -m benchmarks.training

fuzz: setup ## feed mangled frames to the parser for FUZZ_SECONDS (default 60)
	$(BIN)/python -m tests.wire.fuzz $${FUZZ_SECONDS:-60}

chaos: setup ## lose frames, kill workers and restart the server for CHAOS_ROUNDS (default 10000) rounds
	$(BIN)/python -m tests.aggregate.server.chaos --rounds $${CHAOS_ROUNDS:-10000} --seconds $${CHAOS_SECONDS:-1200} \
		$${CHAOS_QUORUM:+--quorum $$CHAOS_QUORUM}

format: setup ## lay out the code as `make check` wants it
	$(BIN)/ruff check --fix --quiet src tests benchmarks examples || true
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/clang-format -i native/*.cpp native/*.h

clean: ## remove the venv and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
