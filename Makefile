# Each target makes .venv itself; only Python 3.11 or newer and make are needed beforehand.
#   make setup    install kvfence with its development tools into .venv
#   make verify   check the specification, then replay the bundled production requests
#   make test     run the tests
#   make lint     ruff and mypy
#   make docs     write the generated pages again (minutes)
#   make bench    run the measurements of bench/
#   make test-gpu      the tests that need a CUDA device
#   make bench-copy    the copy engines on a CUDA device, against the peak of the link
#   make bench-explore  the search engines beside Spin and Rumur (Debian packages spin and rumur)
#   make clean    remove .venv and everything generated
PYTHON ?= python3
BIN := .venv/bin
SAMPLE := checker/samples/mooncake_conversation_300.jsonl
# Two pytest workers: what the smallest supported machine has cores for.
WORKERS ?= 2

.PHONY: setup verify test lint docs bench bench-copy bench-explore test-gpu clean

setup: .venv/.dev

# `make verify` needs less than development does, and the development install includes it.
.venv/.reference: pyproject.toml ci/constraints.txt ci/setup.sh
	@[ .venv/.dev -nt pyproject.toml ] && [ .venv/.dev -nt ci/constraints.txt ] && touch $@ \
	  || PYTHON="$(PYTHON)" ci/setup.sh reference

.venv/.dev: pyproject.toml ci/constraints.txt ci/setup.sh
	@PYTHON="$(PYTHON)" ci/setup.sh dev

verify: .venv/.reference
	$(BIN)/kvfence verify
	$(BIN)/kvfence replay $(SAMPLE) --gpu-blocks 8192 --cpu-blocks 65536

test: .venv/.dev
	$(BIN)/python -m pytest -n $(WORKERS)

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: .venv/.dev
	$(BIN)/python docs/generate_file_list.py
	for page in trace_format invariants designs machines mutation; do \
	  $(BIN)/python docs/generate_$$page.py > out.md && mv out.md docs/$$(echo $$page | tr _ -).md || exit 1; done

bench: .venv/.dev
	$(BIN)/python -m bench

test-gpu: .venv/.dev
	$(BIN)/python -m pytest -m gpu -rs

bench-copy: .venv/.dev
	$(BIN)/python bench/copy_engines.py

bench-explore: .venv/.dev
	$(BIN)/python bench/explore.py --large

clean:
	rm -rf .venv build dist out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
