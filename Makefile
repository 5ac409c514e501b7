# make demo and make test need Python 3.10 or newer and gcc, and nothing else: each makes .venv and installs into it.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE $(shell find src native -type f -not -name '*.pyc')

.PHONY: demo test lint build headers sanitize clean

demo: .venv/.installed
	$(BIN)/gatewise check --cases 300
	$(BIN)/python examples/demo.py
	$(BIN)/gatewise train --overwrite --out out/demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/.installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# For work on the code: Python changes show at once; run again after a change of native code.
build: .venv/.made
	$(BIN)/pip install --quiet --editable '.[test]'

# Print the cells' maths as the C++/CUDA headers again, after a change in src/gatewise/cells, and the tables of native/cpu.
headers: .venv/.made
	PYTHONPATH=src $(BIN)/python -m gatewise.cells.tracer native/cells
	$(BIN)/python native/cpu/tables.py > native/cpu/tables.h

# The engine tests on a native module built with AddressSanitizer and UndefinedBehaviorSanitizer. Python itself is not,
# so their libraries are loaded first, and libstdc++ with them, which has to be there to throw. Leaks are CPython's own, and
# memory grows because AddressSanitizer keeps what was freed.
SANITIZED := build/sanitized
SANITIZERS := $(shell for name in libasan.so libubsan.so libstdc++.so.6; do gcc -print-file-name=$$name; done)
sanitize: .venv/.installed-for-tests
	rm -rf $(SANITIZED)/package
	$(BIN)/pip install --quiet --no-deps --target $(SANITIZED)/package . \
	    -C cmake.define.GATEWISE_SANITIZE=ON -C build-dir=$(SANITIZED)/cmake
	PYTHONPATH=$(SANITIZED)/package LD_PRELOAD="$(SANITIZERS)" \
	    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	    $(BIN)/python -m pytest --capture=sys tests/test_engines.py tests/test_ordinary.py tests/test_inputs.py tests/test_running.py \
	    tests/test_fuzz.py tests/test_native_tape.py tests/test_known_calls.py tests/test_constants.py -k "not grow" -o timeout=1800

.venv/.made:
	$(PYTHON) -m venv .venv
	touch $@

.venv/.installed: .venv/.made $(SOURCES)
	$(BIN)/pip install --quiet '.[plot]'
	touch $@

.venv/.installed-for-tests: .venv/.made $(SOURCES)
	$(BIN)/pip install --quiet '.[test]'
	touch $@ .venv/.installed

clean:
	rm -rf .venv build
