# Everything happens in ./.venv and ./build; nothing is installed on the machine, nothing needs root.
# Paths are relative on purpose: the folder may have any name, spaces included.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# Settings, as in: make demo PYTHON=python3.12
# PYTHON       interpreter for the environment, 3.11 or newer (3.11 is what CI runs)
# TORCH_INDEX  package index with PyTorch's CPU wheels. Empty: the configured index if it offers a CPU build,
#              else https://download.pytorch.org/whl/cpu. Set it when torch comes out built for CUDA.
PYTHON ?=
TORCH_INDEX ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
JOBS ?= 2

# A stamp's name holds a digest of what it depends on, and where the environment is: a moved environment is rebuilt.
hash = $(shell { cat $(1); pwd; } 2>/dev/null | cksum | cut -d' ' -f1)
REQUIREMENTS := tools/constraints.txt tools/requirements-dev.txt $(wildcard tools/sglang_cpu/requirements*.txt)
SHIM_FILES := tools/sglang_cpu/install.py $(shell find tools/sglang_cpu/shim -name '*.py' -o -name '*.pth' | LC_ALL=C sort)
CORE_FILES := pyproject.toml CMakeLists.txt $(shell find csrc -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name CMakeLists.txt \) | LC_ALL=C sort)
STAMPS := $(VENV)/stamps
ENV_STAMP := $(STAMPS)/env-$(call hash,$(REQUIREMENTS))
SHIM_STAMP := $(STAMPS)/shim-$(call hash,$(REQUIREMENTS) $(SHIM_FILES))
# An editable install maps the packages it finds: a Python file that comes or goes needs a new one, an edited one does not.
PYTHON_LAYOUT := $(shell find kvcached prism -name '*.py' | LC_ALL=C sort | cksum | cut -d' ' -f1)
BUILD_STAMP := $(STAMPS)/build-$(call hash,$(REQUIREMENTS) $(CORE_FILES))-$(PYTHON_LAYOUT)
MODELS_STAMP := models/.made-$(call hash,$(wildcard tools/*.py) prism/replay/vocabulary.txt)

# One BLAS and OpenMP thread each: engines that run side by side otherwise starve each other.
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1
export PIP_NO_INPUT := 1
# Importing parts of torch makes this folder, by default in the machine's temporary one, and nothing removes it.
export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/build/torchinductor

.PHONY: help env build models test test-cpp test-sanitized test-python demo support-matrix lint format clean distclean

help: ## list the targets
	@echo "usage: make TARGET [PYTHON=python3.11] [TORCH_INDEX=URL]"
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1:/' | awk -F: '{printf "  %-12s %s\n", $$1, substr($$0, length($$1) + 2)}'

env: $(SHIM_STAMP) ## make ./.venv: pinned packages, real SGLang for the CPU (about 100 s, 2 GB, once)

build: $(BUILD_STAMP) ## compile the C++ core and install this package into ./.venv

models: $(BUILD_STAMP) $(MODELS_STAMP) ## make the demo's three models in ./models (15 s, 300 MB, once)

test: test-cpp test-python ## build and run all tests, C++ and Python

test-cpp: $(BUILD_STAMP) ## only the C++ tests
	$(call run_cpp_tests,tests)

test-sanitized: $(BUILD_STAMP) ## the C++ tests under the address, undefined-behaviour and thread sanitizers
	$(call run_cpp_tests,asan)
	$(call run_cpp_tests,tsan)

# $(1) names a preset of CMakePresets.json; it builds in build/$(1).
define run_cpp_tests
	@echo "== C++ tests ($(1))"
	@mkdir -p build
	@$(VENV)/bin/cmake --preset $(1) -DCMAKE_MAKE_PROGRAM="$$PWD/$(VENV)/bin/ninja" > build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }
	@$(VENV)/bin/cmake --build build/$(1) --parallel $(JOBS)
	@$(VENV)/bin/ctest --test-dir build/$(1) --output-on-failure --no-tests=error --timeout 300
endef

test-python: models ## only the Python tests
	@echo "== Python tests"
	@$(PY) -m pytest

demo: models ## serve three models from one KV budget, replay a trace, draw the memory (under 2 minutes once set up)
	@$(PY) -m demo.run --out out/demo

support-matrix: models ## find out with real engines what works under SGLang, and write docs/support-matrix.md (about 20 minutes)
	@$(PY) -m tests.correctness.support_matrix --out docs/support-matrix.md

lint: $(BUILD_STAMP) ## ruff, mypy --strict, clang-format, import contracts, the stub of the compiled module
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/mypy --strict -p tools -p demo -p bench
	@find csrc \( -name '*.cpp' -o -name '*.hpp' \) -print0 | xargs -0 $(VENV)/bin/clang-format --dry-run --Werror
	@$(VENV)/bin/lint-imports
	@$(PY) tools/check_stub.py

format: $(BUILD_STAMP) ## let ruff and clang-format rewrite the sources
	@$(VENV)/bin/ruff format .
	@find csrc \( -name '*.cpp' -o -name '*.hpp' \) -print0 | xargs -0 $(VENV)/bin/clang-format -i

clean: ## remove what was built and written, keep ./.venv and ./models
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f $(STAMPS)/build-*

distclean: clean ## remove ./.venv and ./models too
	rm -rf $(VENV) models

$(ENV_STAMP): $(REQUIREMENTS)
	@bash tools/check_machine.sh "$(PYTHON)" > /dev/null
	@echo "== environment ./$(VENV) with $$(bash tools/check_machine.sh "$(PYTHON)")"
	@if [ -e $(VENV) ] && ! $(PY) -c 'import os, sys; sys.exit(not os.path.samefile(sys.prefix, "$(VENV)"))' 2> /dev/null; then rm -rf $(VENV); fi
	@[ -x $(PY) ] || { p="$$(bash tools/check_machine.sh "$(PYTHON)")" && rm -rf $(VENV) && "$$p" -m venv $(VENV); }
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/*
	@echo "== tools"
	@$(PIP) install --no-warn-conflicts -c tools/constraints.txt -r tools/requirements-dev.txt
	@echo "== PyTorch and SGLang for the CPU"
	@$(PY) tools/sglang_cpu/install.py --torch-index "$(TORCH_INDEX)"
	@touch $@

$(SHIM_STAMP): $(ENV_STAMP) $(SHIM_FILES)
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/shim-*
	@$(PY) tools/sglang_cpu/install.py --shim-only
	@touch $@

# After the environment, whatever its stamp's age: the models depend on their makers only.
$(MODELS_STAMP): $(wildcard tools/*.py) prism/replay/vocabulary.txt | $(SHIM_STAMP)
	@echo "== models"
	@mkdir -p models && rm -f models/.made-*
	@$(PY) tools/make_models.py models 2> models/.log || { cat models/.log; exit 1; }
	@touch $@

# Editable: the Python files run from here; the compiled module goes into the environment. PATH is for cmake and ninja.
$(BUILD_STAMP): $(SHIM_STAMP) $(CORE_FILES)
	@bash tools/check_machine.sh --compiler $(PY)
	@echo "== compiling and installing this package"
	@mkdir -p build $(STAMPS) && rm -f $(STAMPS)/build-*
	@PATH="$$PWD/$(VENV)/bin:$$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PIP) install --no-build-isolation --no-warn-conflicts -c tools/constraints.txt --editable '.[prism]'
	@$(PY) -c "import kvcached, prism"
	@touch $@
