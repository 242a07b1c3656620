# Two commands from a fresh clone with nothing but Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
FRAMEWORKS := $(VENV)/integrations/.ready
EXTRAS := redis,postgres,nats,httpx,httpx2,aiohttp,requests,cli,gateway,tenacity,plot,otel,prometheus
# Real servers and a browser for the tests that have no wheel on PyPI. Those tests are skipped where the programs are missing.
DEBIAN := postgresql pgbouncer redis-server prometheus chromium
PROGRAMS := /usr/lib/postgresql/*/bin/postgres /usr/sbin/pgbouncer /usr/bin/redis-server /usr/bin/promtool /usr/bin/chromium

.PHONY: install servers test search lint types demo bench docs clean

install: $(READY) $(FRAMEWORKS) servers

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]" --group test --group bench
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(VENV)/openai2 \
	    "openai<3" distro tqdm   # litellm and openai-agents ask for openai 2; the rest of what it needs is there
	touch $@

# Several frameworks ask for an older openai than the tests do, so they are in a folder of their own.
$(FRAMEWORKS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(VENV)/integrations --group integrations
	touch $@

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
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

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

docs: $(READY)
	$(BIN)/python -m pytest tests/test_docs.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
