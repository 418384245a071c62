# The few verbs a person types. All of them work in .venv, which the first one makes.
PYTHON ?= python3
VENV ?= .venv
# e.g. PIP_ARGS="--index-url …" for a mirror
PIP_ARGS ?=
BIN := $(VENV)/bin
# a file of tests stays in one process, whose fixtures it shares; more than 8 processes have nothing to do
PARALLEL := --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# the built-in recorder sees the simulated device too, so that leads and waits show on any machine
DEMO := --workload smoke --ranks 2 --recorder --block 20 --pairs 10

.PHONY: help environment demo test soak engines gpu lint bench clean
help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[impl,dev]'
	@touch $@

environment: $(VENV)/.ready ## the environment in .venv that all others work in

demo: $(VENV)/.ready ## two arms of the built-in decode loop take turns; what changed, and a page of it
	$(BIN)/dflash-bench run --arm legacy --arm topup $(DEMO)
	$(BIN)/dflash-bench report --output reports/demo.html

test: $(VENV)/.ready ## all tests that this machine can run
	$(BIN)/python -m pytest -m 'not soak and not engines' $(PARALLEL)

soak: $(VENV)/.ready ## the long randomised tests
	$(BIN)/python -m pytest -m soak --timeout 3600 $(PARALLEL)

engines: $(VENV)/.ready ## a real SGLang and a real vLLM end to end, each in an environment of its own (half a minute, once)
	$(BIN)/python tests/engines/environments.py
	$(BIN)/python -m pytest -m engines

gpu: $(VENV)/.ready ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

lint: $(VENV)/.ready ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.ready ## what the tool itself costs: ranges, ingest, metrics
	$(BIN)/python -m dflash_prep.ranges
	$(BIN)/python tests/benchmarks/ingest.py

clean: ## remove the environment and what tests leave
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
