# What can be done here; `make` alone says it. The work itself stands in scripts/, one short file each.
.DEFAULT_GOAL := help
.PHONY: help up test test-kube check bench docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: ## start everything on http://localhost:8000, data in .commonage (ARGS="--port 9000")
	@exec scripts/up $(ARGS)

test: ## run all tests this machine can (INSTALL=1: install what is missing, from Debian; ARGS="tests/unit -x")
	@exec scripts/test $(ARGS)

test-kube: ## test on the cluster that KUBECONFIG names, which needs a shell's image (ARGS="-k contract")
	@scripts/setup dev && exec scripts/test_kube $(ARGS)

check: ## format, lint, types and import rules, without the tests
	@scripts/setup dev && exec scripts/check

bench: ## measure this machine (NAME=control ARGS="--json"; without NAME: the names; figures in docs/concepts/benchmarks.md)
	@scripts/setup dev && exec .venv/bin/python -m benchmarks $(if $(filter command,$(origin NAME)),$(NAME)) $(ARGS)

docs: ## write docs/reference from the code, then build the site that the server serves, strictly
	@scripts/setup dev && .venv/bin/python scripts/docs.py && exec .venv/bin/python docs/build.py --strict

lock: ## pin all dependencies anew, with hashes
	@scripts/setup dev && exec scripts/lock

clean: ## remove what was made here; your data in .commonage stays
	@rm -rf .venv build dist node_modules src/commonage/portal/static/vendor src/commonage/portal/docs_site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
