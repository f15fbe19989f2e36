# Every target sets up what it needs by itself, in .venv and build/: from Python 3.11+, a C++
# compiler and make. `make PYTHON=/path/to/python3` chooses the interpreter, `make CXX=...` the
# compiler.

VENV  := .venv
STAMP := $(VENV)/.setup-done
# What checks, measures and writes pages, which the demo need not wait for.
TOOLS := $(VENV)/.tools-done
# Triton, 290 MB that compiling for a CPU, and so the demo, need not wait for.
CUDA  := $(VENV)/.triton-done
# Ray, with what it needs 470 MB that only slow tests need.
RAY   := $(VENV)/.ray-done
PY    := $(VENV)/bin/python
INGOT := $(VENV)/bin/ingot
ARGS  ?=

MODEL    := golden/models/shakespeare
ARTIFACT := build/shakespeare.ingot
PROMPT   ?= First Citizen:
TRITON   ?= 3.6
# What `make affected` compares with, and how long it may take; 0 runs all that is affected.
SINCE    ?= main
SECONDS  ?= 120
# A test process for each processor. Each begins with neighbouring tests, which share what they make.
SPREAD   ?= -n auto --maxprocesses 4 --dist worksteal

# The first of these that is Python 3.11 or newer.
IS_NEW  := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
             "$$p" -c '$(IS_NEW)' >/dev/null 2>&1 && { echo "$$p"; exit; }; done)

# Every process that tests start would compile all of torch anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo smoke affected test test-all test-slow slow-report test-triton tour real real-quick lint bench golden docs size wheel clean

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(CUDA)  ## Make .venv with torch (CPU build where there is no GPU), Triton and the tools

$(STAMP): pyproject.toml tools/constraints.txt tools/setup_env.py
	@test -n "$(PYTHON)" || { \
	  echo "setup: no Python 3.11 or newer found; install one, or: make PYTHON=/path/to/python3"; \
	  exit 1; }
	@$(PYTHON) tools/setup_env.py $(VENV)
	@touch $@

$(TOOLS): $(STAMP)
	@$(PY) tools/setup_env.py $(VENV) tools
	@touch $@

$(CUDA): $(TOOLS) tools/constraints_cuda.txt
	@$(PY) tools/setup_env.py $(VENV) triton
	@touch $@

$(RAY): $(CUDA)
	@$(PY) tools/setup_env.py $(VENV) ray
	@touch $@

demo: $(STAMP)  ## Compile the bundled model and let it write
	@mkdir -p build
	@echo '$$ ingot compile $(MODEL) -o $(ARTIFACT)'
	@$(INGOT) compile $(MODEL) -o $(ARTIFACT) --force
	@echo && echo '$$ ingot run $(ARTIFACT) "$(PROMPT)" --raw'
	@$(INGOT) run $(ARTIFACT) "$(PROMPT)" --raw --max-tokens 120 --temperature 0.8 --seed 2 --stats

smoke: $(TOOLS)  ## Run what takes a minute: no C++ compiler, no torch.export
	@$(PY) -m pytest -q $(SPREAD) -m "not thorough and not slow" -p tests.support.smoke \
	  @tests/smoke.txt $(ARGS)

affected: $(CUDA)  ## Run the tests that can see what has changed (SINCE=main SECONDS=120)
	@$(PY) -m tools.affected --since $(SINCE) --seconds $(SECONDS) $(ARGS)

test: $(CUDA)  ## Run the core of the tests (ARGS="-k word" is passed to pytest)
	@$(PY) -m pytest -q $(SPREAD) -m "not thorough and not slow" $(ARGS)

test-all: $(CUDA)  ## Run the core, and the same tests on all further cases
	@$(PY) -m pytest -q $(SPREAD) -m "not slow" $(ARGS)

test-slow: $(RAY) build/optimum  ## Run the tests that take minutes or gigabytes
	@$(PY) -m pytest -q $(SPREAD) -m slow $(ARGS)

slow-report: $(CUDA)  ## Run the core and tell where the time goes, and which tests are slowest
	@$(PY) -m pytest -q $(SPREAD) -m "not thorough and not slow" -p tests.support.slow_report $(ARGS)

test-triton: $(CUDA) build/triton-$(TRITON)  ## Run the tests of CUDA targets with an older Triton (TRITON=3.6)
	@PYTHONPATH=build/triton-$(TRITON) $(PY) -m pytest -q $(SPREAD) -m "not slow" \
	  tests/targets/cuda $(ARGS)

# With a numpy of its time: the interpreter of 3.6 does not know newer ones.
build/triton-%: $(TOOLS)
	@rm -rf $@ && $(PY) -m pip install -q --no-deps --target $@ "triton==$*.*" "numpy<2.4"

# Optimum's classes for ONNX Runtime, and what they need older versions of than .venv has.
build/optimum: $(TOOLS)
	@rm -rf $@ && $(PY) -m pip install -q --no-deps --target $@ "optimum-onnx==0.1.*" \
	  "optimum==2.1.*" "transformers==4.57.*" "huggingface_hub<1" "tokenizers<0.23"

tour: $(CUDA)  ## Do what a new user does, from the wheel to a page in Chromium if there is one
	@$(PY) -m tools.tour $(ARGS)

real: $(CUDA) build/llama/.done  ## Prove all on real models, which are fetched, and write their page
	@$(PY) -m tools.real $(ARGS)

real-quick: $(CUDA)  ## Prove the smallest real model, in two minutes and without a judge
	@$(PY) -m tools.real --quick $(ARGS)

# llama.cpp, which is built for this machine and judges how real models are run.
build/llama/.done:
	@rm -rf build/llama && $(PYTHON) -m venv build/llama && \
	  CMAKE_ARGS=-DGGML_NATIVE=ON build/llama/bin/pip install -q "llama-cpp-python==0.3.*"
	@touch $@

lint: $(CUDA)  ## Check style (ruff) and types (mypy --strict)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: $(CUDA)  ## Measure speed beside this machine's limits
	@$(PY) -m bench $(ARGS)

golden: $(TOOLS)  ## Record the bundled model's outputs anew; look at the diff before committing it
	@$(PY) -m golden.update

docs: $(TOOLS)  ## Rewrite the pages that are generated from the code and from figures
	@$(PY) -m tools.api_page
	@$(PY) -m tools.cli_page
	@$(PY) -m tools.coming_from_page
	@$(PY) -m tools.passes_page
	@$(PY) -m tools.tool_formats_page
	@$(PY) -m tools.schema_page
	@$(PY) -m tools.layout_page
	@$(PY) -m tools.step_page
	@$(PY) -m tools.figures_page
	@$(PY) -m tools.curve_page
	@$(PY) -m tools.race_page
	@$(PY) -m bench.gpu.predicted

size: $(TOOLS)  ## Count lines a folder, passes and ops
	@$(PY) -m tools.size

wheel: $(TOOLS)  ## Build the wheel into dist/
	@$(PY) -m tools.wheel dist

clean:  ## Remove .venv and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
