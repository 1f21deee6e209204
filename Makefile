# The commands of a day's work. Debian, Python 3.11 or newer, make and gcc are enough; pip fetches the rest, and
# apt-get (for root) what the tests of GPU kernels run on (an OpenCL device, the AMD compiler's parts) and those
# of AArch64 kernels (a cross compiler, qemu).
#
#   make demo        two real models, optimized, checked and timed beside onnxruntime
#   make test        the tests, without those that take minutes
#   make test-slow   those that take minutes
#   make check       formatting, ruff, mypy and the tests
#   make bench       the contest's convolutions beside onnxruntime and OpenVINO
#   make clean       removes .venv, .cache and what the tools leave behind

PYTHON ?= python3
VENV := .venv
PACKAGES := pocl-opencl-icd oclgrind rocm-device-libs lld-19 hipcc libamdhip64-dev clang-19 \
  qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
RUN := $(VENV)/bin/python
PYTEST := $(RUN) -m pytest -n 2 -rs
THREADS ?= 2
# The tests start hundreds of interpreters: where this is set each one translates the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow lint check bench clean

demo: $(VENV)/.installed
	$(RUN) examples/demo.py

test: $(VENV)/.installed-dev $(VENV)/.installed-packages
	@echo "tests marked slow are left to: make test-slow"
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.installed-dev $(VENV)/.installed-packages
	$(PYTEST) -m slow

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

check: lint test

bench: $(VENV)/.installed-dev
	$(VENV)/bin/convopt bench --suite contest --threads $(THREADS) --against onnxruntime,openvino

# Debian's python3 has no ensurepip without the package python3-venv; pip itself can fill the environment then.
$(VENV)/bin/pip:
	@$(PYTHON) -m venv $(VENV) || { \
	  $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --quiet --python $(VENV)/bin/python install pip; } || { \
	  rm -rf $(VENV); echo "make: $(PYTHON) can't make a virtual environment: install python3-venv" >&2; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.installed

# Without them the tests that need them are skipped, and say so (in the CI they fail).
$(VENV)/.installed-packages: | $(VENV)/bin/pip
	@missing=$$(for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -z "$$missing" ]; then touch $@; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends --yes \
	    $$missing >/dev/null && touch $@; \
	else echo "make: for the tests of GPU and AArch64 kernels: apt-get install" $$missing; fi

clean:
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
