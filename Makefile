# Verbs match CI one to one: .ci/run calls `make lint type test` and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEPS := $(VENV)/.deps
BUILT := $(VENV)/.built
CXX_SOURCES := CMakeLists.txt $(shell find csrc tests/csrc -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)
PYTEST := $(BIN)/python -m pytest
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

.PHONY: build demo test unit ranks mpi ctest aarch64 lint type bench soak clean

build: $(BUILT)

$(DEPS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "atb_dist needs Python >= 3.11, found %d.%d; set PYTHON=python3.11 or newer" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt pip scikit-build-core pybind11 cmake ninja
	@touch $@

$(BUILT): $(DEPS) $(CXX_SOURCES)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: build
	$(BIN)/atb-dist launch -n 2 -- $(BIN)/atb-dist generate --model examples/models/bard --prompt 'ROMEO.' --max-tokens 120 --temperature 0.7 --seed 7 --stats

test: unit ranks mpi ctest

unit: build
	$(PYTEST) -q tests/unit tests/test_*.py

ranks: build
	$(PYTEST) -q tests --ignore=tests/unit --ignore-glob='tests/test_*.py'

mpi: build
	$(BIN)/mpiexec -n 4 $(PYTEST) -q --with-mpi -m mpi tests/comm tests/ranks

ctest: build
	$(BIN)/cmake -S . -B build/ctest -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DATB_DIST_PYTHON=OFF -DATB_DIST_TESTS=ON -DATB_DIST_WERROR=ON -DCMAKE_BUILD_TYPE=Release
	$(BIN)/cmake --build build/ctest
	$(BIN)/ctest --test-dir build/ctest --output-on-failure

# The portable path, as Ascend hosts (aarch64) run it. Debian: g++-aarch64-linux-gnu qemu-user-static
aarch64: build
	@if ! command -v aarch64-linux-gnu-g++ qemu-aarch64-static > /dev/null; then echo "aarch64: skipped, needs aarch64-linux-gnu-g++ and qemu-aarch64-static"; exit 0; fi; \
	$(BIN)/cmake -S . -B build/aarch64 -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DATB_DIST_PYTHON=OFF -DATB_DIST_TESTS=ON -DATB_DIST_WERROR=ON -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ '-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu' && \
	$(BIN)/cmake --build build/aarch64 && $(BIN)/ctest --test-dir build/aarch64 --output-on-failure

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(find csrc tests/csrc -name '*.cc' -o -name '*.h')

type: build
	$(BIN)/mypy

bench: build
	$(BIN)/atb-dist bench decode --random 246M

soak: build
	ATB_DIST_SOAK=1 $(PYTEST) -q tests
	$(BIN)/python examples/llama70b_tp8.py
	for s in address,undefined thread; do \
	  $(BIN)/cmake -S . -B build/ctest-$$s -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DATB_DIST_PYTHON=OFF -DATB_DIST_TESTS=ON -DATB_DIST_SANITIZE=$$s -DCMAKE_BUILD_TYPE=RelWithDebInfo && \
	  $(BIN)/cmake --build build/ctest-$$s && $(BIN)/ctest --test-dir build/ctest-$$s --output-on-failure || exit 1; \
	done

clean:
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .hypothesis
