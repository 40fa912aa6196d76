# Each target makes .venv itself; only Python 3.11 or newer and make are needed beforehand.
#   make setup    install kvfence with its development tools into .venv
#   make verify   check the specification, then replay the bundled production requests
#   make test     run the tests
#   make coverage  branch coverage by the quick tests of each part (COVERED), with the figure in the last line
#   make fuzz     random machines, judged directly and by every engine: SEED=1 SECONDS=3600, FROM=0 to go on, or CASE
#   make lint     ruff and mypy
#   make docs     write the generated pages again (minutes)
#   make files    write docs/files.md: a line for every source file
#   make mutation mutate a sample of kvfence's own Python, and see that a test notices (SEED, SAMPLE_SIZE, PATHS)
#   make dist     build sdist and wheel, and test them in clean environments of each Python from 3.11 on
#   make bench    run the measurements of bench/
#   make test-gpu      the tests that need a CUDA device
#   make test-vllm     a whole vLLM on the CPU, offloading, with kvfence around it (gigabytes, minutes)
#   make bench-monitor  what kvfence adds to the scheduler step of vLLM
#   make bench-copy    the copy engines on a CUDA device, against the peak of the link
#   make bench-explore  the search engines beside Spin and Rumur (Debian packages spin and rumur)
#   make bench-explore-gpu  the search on a CUDA device, beside the C engine
#   make clean    remove .venv and everything generated
PYTHON ?= python3
BIN := .venv/bin
SAMPLE := reference/samples/mooncake_conversation_300.jsonl
# Two pytest workers: what the smallest supported machine has cores for.
WORKERS ?= 2
LOCKS := ci/lock-build.txt ci/lock-reference.txt ci/lock-dev.txt \
  checker/audit/releases/torch_cpu_lock.txt checker/audit/releases/torch_cuda_lock.txt

.PHONY: test-vllm bench-monitor setup verify test coverage fuzz lint docs files mutation dist bench bench-copy bench-explore bench-explore-gpu test-gpu clean

setup: .venv/.dev

# `make verify` needs less than development does, and the development install includes it.
.venv/.reference: pyproject.toml $(LOCKS) ci/setup.sh
	@[ .venv/.dev -nt pyproject.toml ] && [ .venv/.dev -nt ci/lock-dev.txt ] && touch $@ \
	  || PYTHON="$(PYTHON)" ci/setup.sh reference

.venv/.dev: pyproject.toml $(LOCKS) ci/setup.sh
	@PYTHON="$(PYTHON)" ci/setup.sh dev

verify: .venv/.reference
	$(BIN)/kvfence verify
	$(BIN)/kvfence replay $(SAMPLE) --gpu-blocks 8192 --cpu-blocks 65536

test: .venv/.dev
	$(BIN)/python -m pytest -n $(WORKERS)

# Counting branches doubles the time that Python takes: these tests are quick, and are those of rules and parts.
COVERED ?= tests/spec tests/reference/copy tests/reference/device_order tests/checker/ledger tests/checker/order tests/checker/report \
  tests/checker/adapters tests/checker/cli/test_verify.py tests/checker/cli/test_check.py
coverage: .venv/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report= $(COVERED)
	@echo "branch coverage of the quick tests, in percent: $$($(BIN)/python -m coverage report --format=total)"

SEED ?= 1
SECONDS ?= 3600
FROM ?= 0
fuzz: .venv/.dev
	$(BIN)/python tests/differential --seed $(SEED) --seconds $(SECONDS) --from $(FROM) $(if $(CASE),--case $(CASE))

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

files: .venv/.dev
	$(BIN)/python docs/generate_file_list.py > docs/files.md

docs: .venv/.dev
	for page in trace_format order_format invariants designs machines mutation; do \
	  $(BIN)/python docs/generate_$$page.py > out.md && mv out.md docs/$$(echo $$page | tr _ -).md || exit 1; done

SEED ?= 1
SAMPLE_SIZE ?= 100
mutation: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement ci/mutation_pins.txt
	$(BIN)/python ci/mutation.py --seed $(SEED) --sample $(SAMPLE_SIZE) $(PATHS)

dist:
	$(PYTHON) ci/dist.py

bench: .venv/.dev
	$(BIN)/python -m bench

test-gpu: .venv/.dev
	$(BIN)/python -m pytest -m gpu -rs

VLLM ?= 0.32.0
test-vllm: .venv/.dev
	$(BIN)/python ci/with_vllm.py --whole $(VLLM) tests/vllm_engine/compare.py

bench-monitor: .venv/.dev
	$(BIN)/python ci/with_vllm.py $(VLLM) bench/monitor.py

bench-copy: .venv/.dev
	$(BIN)/python bench/copy_engines.py

bench-explore: .venv/.dev
	$(BIN)/python bench/explore.py --large

bench-explore-gpu: .venv/.dev
	$(BIN)/python bench/explore_gpu.py --native 5x3 --walks 5x3

clean:
	rm -rf .venv build dist out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
