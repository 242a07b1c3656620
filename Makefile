# Two commands from a fresh clone with nothing but Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
FRAMEWORKS := $(VENV)/integrations/.ready
SITE   := $(VENV)/.ready-docs
TOOLS  := $(VENV)/.ready-quality
EXTRAS := redis,postgres,nats,httpx,httpx2,aiohttp,requests,cli,gateway,tenacity,plot,otel,prometheus
# Real servers and a browser for the tests that have no wheel on PyPI. Those tests are skipped where the programs are missing.
DEBIAN := postgresql pgbouncer redis-server prometheus chromium
PROGRAMS := /usr/lib/postgresql/*/bin/postgres /usr/sbin/pgbouncer /usr/bin/redis-server /usr/bin/promtool /usr/bin/chromium

# The versions that the tests have passed with. `make clean install PINNED=no` takes the newest instead, and after a
# `make test PINNED=no` that passed, `make pins` writes them down.
PINNED ?= yes
ifeq ($(PINNED),yes)
PINS := --constraint constraints/test.txt
FRAMEWORK_PINS := --constraint constraints/integrations.txt
endif
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Images of containers often set this. Tests start hundreds of processes, and each would compile headgate anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install pins servers test search lint types demo bench docs quality coverage mutants package clean

install: $(READY) $(FRAMEWORKS) servers

$(READY): pyproject.toml constraints/test.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) $(PINS) --editable ".[$(EXTRAS)]" --group test --group bench
	$(PIP) $(FRAMEWORK_PINS) --upgrade --no-deps --target $(VENV)/openai2 \
	    "openai<3" distro tqdm   # litellm and openai-agents ask for openai 2; the rest of what it needs is there
	touch $@

# Several frameworks ask for an older openai than the tests do, so they are in a folder of their own.
$(FRAMEWORKS): $(READY) constraints/integrations.txt
	$(PIP) $(FRAMEWORK_PINS) --upgrade --target $(VENV)/integrations --group integrations
	touch $@

# Only `make docs` and `make quality` need these.
$(SITE): $(READY)
	$(PIP) $(PINS) --group docs
	touch $@

$(TOOLS): $(READY)
	$(PIP) $(PINS) --group quality
	touch $@

LISTED := $(BIN)/python -m pip list --disable-pip-version-check --format=freeze --exclude-editable
WRITTEN := \# Versions that the tests have passed with, written by `make pins`.
pins: install $(SITE) $(TOOLS)
	$(PIP) $(PINS) --group release
	(echo '$(WRITTEN)'; $(LISTED) --exclude pip --exclude setuptools) > constraints/test.txt
	(echo '$(WRITTEN)'; $(LISTED) --path $(VENV)/openai2 --path $(VENV)/integrations | sort -u -f) > constraints/integrations.txt

# As root on Debian: installs what is missing, and starts none of the services.
servers:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! ls $(PROGRAMS) >/dev/null 2>&1; then \
	    echo "installing $(DEBIAN)"; \
	    policy=/usr/sbin/policy-rc.d; made=; \
	    if [ ! -e $$policy ]; then made=$$policy; printf '#!/bin/sh\nexit 101\n' > $$policy; chmod +x $$policy; fi; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    apt-get -qq update && apt-get -qq install --yes --no-install-recommends $(DEBIAN) >/dev/null; status=$$?; \
	    if [ -n "$$made" ]; then rm -f $$made; fi; exit $$status; \
	fi

test: install lint types
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m alone $$(grep -rl --include='test_*.py' 'mark\.alone' tests)

search: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone" --hypothesis-profile searching

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy tests/typing

demo: $(READY)
	$(BIN)/python -m headgate demo --plot $(VENV)/demo.png

bench: install
	$(BIN)/python bench/run.py

# The site, in build/site, with warnings as errors; the pages tell the truth, and no link of the built pages is broken.
docs: $(READY) $(SITE)
	$(BIN)/python -m pytest tests/test_docs.py tests/test_reference.py
	$(BIN)/python docs/make_site.py build/site

# How much of the pure rules the tests reach, and how many wrong versions of them the tests notice.
quality: coverage mutants

coverage: $(TOOLS)
	$(BIN)/python bench/quality.py coverage

mutants: $(TOOLS)
	$(BIN)/python bench/quality.py mutants

# What is published: the sdist and the wheel, in dist/.
package: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
