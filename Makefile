# Everything sets itself up: a venv in .venv, the dependencies, the package with its native kernels.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(shell find src native -type f \( -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.html' -o -name py.typed \) 2>/dev/null)

# Installing without bytecode saves most of a minute; what is then compiled on first use must be kept, or every
# process of a demo or test would compile torch again.
PIP_INSTALL := $(BIN)/pip install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench bench-training fuzz sanitize chaos soak format clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A demo needs little; all else adds to the same venv when it is first asked for. The import is for the bytecode: eight
# processes that start at once would each compile it.
$(VENV)/demo.stamp: requirements-demo.txt | $(BIN)/python
	$(PIP_INSTALL) -r requirements-demo.txt
	$(BIN)/python -c "import torch.distributed.run, torch.nn.parallel, torch._dynamo, sklearn.datasets, matplotlib.figure"
	touch $@

$(VENV)/wheel.stamp: $(SOURCES) | $(BIN)/python
	rm -rf $(VENV)/wheel
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir $(VENV)/wheel .
	touch $@

$(VENV)/package.stamp: $(VENV)/demo.stamp $(VENV)/wheel.stamp
	$(PIP_INSTALL) --force-reinstall --no-deps $(VENV)/wheel/*.whl
	touch $@

# After the package, because two runs of pip in one venv would break each other under `make -j`.
$(VENV)/deps.stamp: $(VENV)/demo.stamp requirements-dev.txt | $(VENV)/package.stamp
	$(PIP_INSTALL) --upgrade pip
	$(PIP_INSTALL) -r requirements-dev.txt
	$(PIP_INSTALL) --no-deps recbole==1.2.1  # only for the ratings that lie in it
	touch $@

setup: $(VENV)/package.stamp $(VENV)/deps.stamp ## create the venv, install everything, build the kernels

demo: ## four workers train over slow links: a table and a figure
	@$(MAKE) --no-print-directory -j 2 $(VENV)/package.stamp  # which builds kernels while torch is installed
	$(BIN)/sumwire demo

# What starts many processes to test training, servers and links, or trains and fits models, says nothing new about kernels;
# nor do laws of many random numbers, since native kernels have the reference's bits.
TRAINING := tests/train tests/estimators tests/aggregate/server tests/aggregate/client tests/codec/test_accuracy.py tests/codec/lattice/test_unbiased.py tests/dme/test_bounds.py tests/dme/test_unbiased.py tests/test_benchmarks.py tests/test_cli.py tests/aggregate/test_lifetime.py tests/aggregate/test_matrix.py tests/aggregate/test_matrix_kinds.py tests/aggregate/test_matrix_training.py tests/aggregate/test_matrix_training_kinds.py tests/aggregate/group tests/test_docs_code.py $(addprefix tests/lab/test_,gradients.py dme.py comparison.py demo.py launch.py lhc.py links.py workloads.py workload_sums.py)

# Two processes share the tests: those of pure computation one by one; of the others each has a half, in the order of
# the files, which may have a server or a cluster for all their tests, and takes from the other's when it is done.
PURE := tests/codec tests/kernels tests/dme tests/wire
PYTEST := $(BIN)/python -m pytest -n 2
REFERENCE := SUMWIRE_KERNELS=reference HYPOTHESIS_PROFILE=quick $(PYTEST)

test: setup ## the whole suite on the native kernels, then what depends on them on the reference
	$(PYTEST) $(PURE)
	$(PYTEST) --dist worksteal tests $(PURE:%=--ignore=%)
	$(REFERENCE) $(PURE) $(TRAINING:%=--ignore=%)
	$(REFERENCE) --dist worksteal tests $(PURE:%=--ignore=%) $(TRAINING:%=--ignore=%)

check: setup ## ruff, mypy --strict, import-linter, clang-format
	$(BIN)/ruff check src tests benchmarks examples docs/generate_api.py docs/docstrings.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/generate_api.py docs/docstrings.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror native/*.cpp native/*.h

# The commands that stand in docs/benchmarks.md; a test compares. The images are Debian's dataset-fashion-mnist.
ONE := OMP_NUM_THREADS=1 $(BIN)/python -m
BENCH := $(BIN)/python -m
# Afterwards, `python -m benchmarks.tables` writes the figures into the docs.
json = --json benchmarks/results/$(1).jsonl

bench: setup ## hours: every table of docs/benchmarks.md but those of bench-training
	$(ONE) benchmarks.kernels --runs 3 $(call json,kernels)
	$(BENCH) benchmarks.kernels --runs 3 --level avx2 $(call json,kernels)
	$(BENCH) benchmarks.accuracy $(call json,accuracy)
	$(BENCH) benchmarks.exchange --rates 100Mbit --runs 3 $(call json,exchange)
	$(BENCH) benchmarks.exchange --rates 1Gbit,10Gbit,loopback --runs 9 $(call json,exchange)
	$(ONE) benchmarks.sparse_kernels --runs 3 $(call json,sparse_kernels)
	$(ONE) benchmarks.sparse_scale --runs 3 $(call json,sparse_scale)
	$(ONE) benchmarks.sketch $(call json,sketch)
	$(ONE) benchmarks.dme --runs 5 $(call json,dme)
	$(BENCH) benchmarks.sparse_bytes $(call json,sparse_bytes)
	$(BENCH) benchmarks.sparse_training --workload ncf --steps 20 $(call json,sparse_training)
	$(BENCH) benchmarks.sparse_training --workload ncf-rows --steps 20 $(call json,sparse_training)
	$(BENCH) benchmarks.sparse_training --workload lstm --steps 8 $(call json,sparse_training)
	$(BENCH) benchmarks.sparse_training --workload vgg --steps 6 $(call json,sparse_training)
	$(BENCH) benchmarks.server throughput --rounds 16 --runs 9 --seconds 3 $(call json,server_throughput)
	$(BENCH) benchmarks.server cpu --runs 15 $(call json,server_cpu)
	$(BENCH) benchmarks.server latency --workers 4,64,1000 --rounds 100 $(call json,server_latency)
	$(BIN)/sumwire lab dme $(call json,lab_dme)
	$(BIN)/sumwire lab kmeans --data fashion-mnist --repeats 2 $(call json,lab_kmeans)
	$(BIN)/sumwire lab pca --data fashion-mnist --repeats 2 $(call json,lab_pca)
	$(BENCH) benchmarks.estimators $(call json,estimators)

bench-training: setup ## hours: time to target on slow links, and the evidence for the defaults
	$(BENCH) benchmarks.time_to_target --rate 100Mbit --seeds 5 --methods fp32,fp16,powersgd-1,powersgd-2,powersgd-4,sumwire-4,sumwire-2 $(call json,time_to_target)
	$(BENCH) benchmarks.training --jobs 1 --out results.json $(call json,training)

fuzz: setup ## feed mangled frames and control messages to their readers for FUZZ_SECONDS (default 60)
	$(BIN)/python -m tests.wire.fuzz $${FUZZ_SECONDS:-60}

SANITIZED := build/sanitize
# Leaks are left out: an interpreter never frees all.
SANITIZER = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	SUMWIRE_KERNELS=native PYTHONPATH=$(SANITIZED)/package $(BIN)/python

sanitize: setup ## kernel and frame tests on kernels built with AddressSanitizer and UBSan (needs GCC and CMake)
	cmake -S . -B $(SANITIZED) -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=$(CXX) -DSUMWIRE_SANITIZE=ON
	cmake --build $(SANITIZED) --parallel 2
	rm -rf $(SANITIZED)/package && mkdir $(SANITIZED)/package && cp -R src/sumwire $(SANITIZED)/package
	rm -f $(SANITIZED)/package/sumwire/kernels/libsumwire.*  # one built in place would be kept as up to date
	cmake --install $(SANITIZED) --prefix $(SANITIZED)/package
	! $(SANITIZER) -m tests.kernels.overrun 2> $(SANITIZED)/overrun.log && grep -q heap-buffer-overflow $(SANITIZED)/overrun.log
	$(SANITIZER) -m pytest -n 2 tests/kernels tests/wire

chaos: setup ## lose frames, kill workers and restart the server for CHAOS_ROUNDS (default 10000) rounds
	$(BIN)/python -m tests.aggregate.server.chaos --rounds $${CHAOS_ROUNDS:-10000} --seconds $${CHAOS_SECONDS:-1200} \
		$${CHAOS_QUORUM:+--quorum $$CHAOS_QUORUM} $${CHAOS_JSON:+--json $$CHAOS_JSON}

soak: setup ## attach, train and close in fresh processes SOAK_RUNS (default 2000) times under load; keep logs of failures
	$(BIN)/python -m tests.train.soak --runs $${SOAK_RUNS:-2000} --seconds $${SOAK_SECONDS:-3600}

format: setup ## lay out the code as `make check` wants it
	$(BIN)/ruff check --fix --quiet src tests benchmarks examples || true
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/clang-format -i native/*.cpp native/*.h

clean: ## remove the venv and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
