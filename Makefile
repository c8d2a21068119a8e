# Everything sets itself up: a venv in .venv, the dependencies, the package with its native kernels.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml CMakeLists.txt $(shell find src native bpf -type f \( -name '*.py' -o -name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name '*.html' -o -name '*.npz' -o -name py.typed \) 2>/dev/null)

# Installing without bytecode saves most of a minute; what is then compiled on first use must be kept, or every
# process of a demo or test would compile torch again.
PIP_INSTALL := $(BIN)/pip install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=

C_SOURCES := $(wildcard native/*.cpp native/*.c native/*.h bpf/*.c bpf/*.h bpf/include/bpf/*.h benchmarks/switch/*.c benchmarks/switch/*.h)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu-kernels test-torch check lab bench bench-training bench-gpu gpu-compile fuzz sanitize chaos chaos-sites soak bpf format clean

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
	-$(PIP_INSTALL) torchft-nightly==2026.10.26  # nightlies vanish some day; its tests are then skipped
	touch $@

setup: $(VENV)/package.stamp $(VENV)/deps.stamp ## create the venv, install everything, build the kernels

demo: ## four workers train over slow links: a table and a figure
	@$(MAKE) --no-print-directory -j 2 $(VENV)/package.stamp  # which builds kernels while torch is installed
	$(BIN)/sumwire demo

# Left out on the reference: what starts many processes to test training, servers and links, or trains and fits models,
# says nothing about kernels; laws of many random numbers say nothing new, since native kernels have the reference's bits;
# and tests that name the kernels they compare do the same on either.
SAME_ON_REFERENCE := tests/train tests/estimators tests/gpu \
	$(addprefix tests/aggregate/,client group network protocol server switch test_lifetime.py test_matrix.py test_matrix_kinds.py test_matrix_training.py test_matrix_training_kinds.py) \
	tests/codec/test_accuracy.py tests/codec/lattice/test_unbiased.py tests/dme/test_bounds.py tests/dme/test_unbiased.py \
	$(addprefix tests/kernels/test_,backends.py cache.py choice.py narrow.py reference.py scales.py sketch.py) \
	$(addprefix tests/lab/test_,calibration.py gradients.py dme.py comparison.py demo.py launch.py lhc.py links.py plan.py pretrain.py published.py record_trace.py recorded.py registry.py testbed.py workloads.py workload_sums.py) \
	tests/lab/peers tests/lab/experiments tests/lab/simulate tests/test_benchmarks.py tests/test_cli.py tests/test_docs_code.py

# Three processes share the tests, since many of these wait rather than compute: each has a part, in the order of the
# files, which may have a server or a cluster for all their tests, and takes from another's when it is done.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal tests

test: setup ## the whole suite on the native kernels, then what depends on them on the reference
	$(PYTEST)
	SUMWIRE_KERNELS=reference HYPOTHESIS_PROFILE=quick $(PYTEST) $(SAME_ON_REFERENCE:%=--ignore=%)

# Apart from the rest: Triton's interpreter, set for the whole process, is slow. Nothing here needs a GPU.
test-gpu-kernels: setup ## GPU kernels by Triton's interpreter and its compilers, two minutes (skipped without Triton)
	TRITON_INTERPRET=1 $(PYTEST)/gpu

# In a venv of its own. PyPI's builds for Linux bring several GB of CUDA along, which nothing here uses.
TORCH_TESTS := tests/train/process_group tests/train/test_ddp.py tests/train/diloco/test_diloco.py
OTHER_TORCH = build/torch-$(TORCH)
test-torch: $(VENV)/wheel.stamp ## process groups, DDP and DiLoCo on another torch: make test-torch TORCH=2.9.1
	$(if $(TORCH),,$(error name the version: make test-torch TORCH=2.9.1))
	$(PYTHON) -m venv $(OTHER_TORCH)
	$(OTHER_TORCH)/bin/pip install --quiet --no-compile torch==$(TORCH) numpy cryptography hypothesis pytest pytest-timeout pytest-xdist
	$(OTHER_TORCH)/bin/pip install --quiet --no-compile --force-reinstall --no-deps $(VENV)/wheel/*.whl
	$(OTHER_TORCH)/bin/python -m pytest -n 2 $(TORCH_TESTS)

check: setup ## ruff, mypy --strict, import-linter, clang-format
	$(BIN)/ruff check src tests benchmarks examples docs/generate_api.py docs/docstrings.py
	$(BIN)/ruff format --check src tests benchmarks examples docs/generate_api.py docs/docstrings.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)

# The commands that stand in docs/benchmarks.md; a test compares. The images are Debian's dataset-fashion-mnist.
ONE := OMP_NUM_THREADS=1 $(BIN)/python -m
BENCH := $(BIN)/python -m
# Afterwards, `python -m benchmarks.tables` writes the figures into the docs.
json = --json benchmarks/results/$(1).jsonl

LAB = $(BIN)/sumwire lab run $(1) --full --results benchmarks/results/lab
lab: setup ## the results, tables and figures of docs/lab.md; what is there already is not measured again
	$(call LAB,accuracy bits scale hops installed)
	$(call LAB,training bits_training hops_training scale_training ablation)
	$(call LAB,loss stragglers drift)
	$(call LAB,throughput stages)
	$(call LAB,sparse_bytes sketch sparse)
	$(BIN)/sumwire lab report --results benchmarks/results/lab --figures docs/figures --out lab-report.html
	$(BENCH) benchmarks.tables

bench: setup ## hours: every table of docs/benchmarks.md but those of bench-training
	$(ONE) benchmarks.kernels --runs 3 $(call json,kernels)
	$(BENCH) benchmarks.kernels --runs 3 --level avx2 $(call json,kernels)
	$(BENCH) benchmarks.accuracy $(call json,accuracy)
	$(BENCH) benchmarks.exchange --rates 100Mbit --runs 3 $(call json,exchange)
	$(BENCH) benchmarks.exchange --rates 100Mbit --runs 3 --switch --contenders 'alone: (fp32|sumwire-4|switch-4)\Z'
	$(BENCH) benchmarks.exchange --rates 1Gbit,10Gbit --runs 13 --contenders 'alone: (fp32|sumwire-4|bytes-4)\Z'
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
	$(BENCH) benchmarks.switch stress $(call json,switch)
	$(BENCH) benchmarks.switch stress --workers 4,8 --straggler $(call json,switch)
	$(BENCH) benchmarks.switch stress --aggregators xdp $(call json,switch)
	$(BENCH) benchmarks.switch throughput $(call json,switch)
	$(BENCH) benchmarks.switch rate $(call json,switch)
	$(BENCH) benchmarks.switch loss --loss 0.01 --seeds 3 $(call json,switch)
	$(BIN)/sumwire lab dme $(call json,lab_dme)
	$(BIN)/sumwire lab kmeans --data fashion-mnist --repeats 2 $(call json,lab_kmeans)
	$(BIN)/sumwire lab pca --data fashion-mnist --repeats 2 $(call json,lab_pca)
	$(BENCH) benchmarks.estimators $(call json,estimators)
	$(BENCH) benchmarks.plan $(call json,plan)

bench-training: setup ## hours: time to target on slow links, and the evidence for the defaults
	$(BENCH) benchmarks.time_to_target --rate 100Mbit --seeds 5 --methods fp32,fp16,powersgd-1,powersgd-2,powersgd-4,sumwire-4,sumwire-2 $(call json,time_to_target)
	$(ONE) benchmarks.sites --batch 4 --workers 4 --every 30 --steps 600 --methods fp32,4,2,4+feedback,2+feedback,ddp-fp16,ddp-powersgd-4,ddp-sumwire-4 --target 2.7 $(call json,sites)
	$(ONE) benchmarks.sites --batch 4 --workers 8 --every 30 --steps 600 --methods fp32,4,2 --target 2.7 $(call json,sites)
	$(ONE) benchmarks.sites --batch 4 --workers 4,8 --every 100 --steps 800 --methods fp32,4,2 --target 2.7 $(call json,sites)
	$(BENCH) benchmarks.training --jobs 1 --out results.json $(call json,training)

bench-gpu: setup ## kernels on this machine's GPU: a table to send back
	$(BENCH) benchmarks.gpu

gpu-compile: setup ## 10 to 25 minutes: compile every GPU kernel for every target, without a GPU; write docs/gpu-compile.md
	$(BENCH) benchmarks.gpu_compile --out docs/gpu-compile.md

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

chaos-sites: setup ## kill, stop and start workers of a DiLoCo run, and its server, for CHAOS_ROUNDS (default 200) outer rounds
	$(BIN)/python -m tests.train.diloco.chaos --rounds $${CHAOS_ROUNDS:-200} --seconds $${CHAOS_SECONDS:-1200} \
		--seed $${CHAOS_SEED:-0} $${CHAOS_CALM:+--calm} $${CHAOS_JSON:+--json $$CHAOS_JSON}

soak: setup ## attach, train and close in fresh processes SOAK_RUNS (default 2000) times under load; keep logs of failures
	$(BIN)/python -m tests.train.soak --runs $${SOAK_RUNS:-2000} --seconds $${SOAK_SECONDS:-3600}

# Committed, so that nobody else needs clang and bpftool (Debian: clang, libbpf-dev, bpftool).
BPF_CLANG := clang -O2 -g -mcpu=v3 -target bpf -ffreestanding -Wall -Wextra -Wno-address-of-packed-member
BPF_CLANG += -I/usr/include/$(shell uname -m)-linux-gnu -ffile-prefix-map=$(CURDIR)=.  # the same bytes wherever it is built
BPF_PROGRAMS := $(patsubst bpf/%.bpf.c,%,$(wildcard bpf/*.bpf.c))

bpf: ## compile bpf/ to the skeletons that the native library is built with
	mkdir -p build/bpf
	for name in $(BPF_PROGRAMS); do \
		$(BPF_CLANG) -c bpf/$$name.bpf.c -o build/bpf/$$name.o && \
		bpftool gen skeleton -L build/bpf/$$name.o name $$name > bpf/skeleton/$$name.lskel.h || exit 1; \
	done
	cat bpf/*.c bpf/*.h | sha256sum | cut -d ' ' -f 1 > bpf/skeleton/sources.sha256  # which a test compares

format: setup ## lay out the code as `make check` wants it
	$(BIN)/ruff check --fix --quiet src tests benchmarks examples || true
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/clang-format -i $(C_SOURCES)

clean: ## remove the venv and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
