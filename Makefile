SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $$(git describe --tags --always --dirty)
FUZZTIME ?= 30s
BENCH ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Watch orders lapse: the whole system in one process, on real calls; needs only Go
	go run ./cmd/lapse demo

.PHONY: build
build: ## Build the programs into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags "-X lapse/pkg/app.Version=$(VERSION)" -o bin/ ./producer ./consumer ./compensator ./cmd/lapse

.PHONY: test
test: compiler arrows vet ## All tests, with -race, on a real database and broker; nothing is skipped
	scripts/with-services.sh make --no-print-directory test-services

# What stops the broker, and the long tests on whole processes, run alone after all others.
ALONE := ./pkg/delay/rocketmq ./test/...

# The race detector watches everything but the translated C of SQLite, which would make the tests three times as long.
RACE := -race -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc=-race=false

.PHONY: test-services
test-services: export LAPSE_TEST_REQUIRED = 1
test-services:
	go test $(RACE) -count=1 -timeout 30m $$(go list ./... | grep -vxF "$$(go list $(ALONE))")
	go test $(RACE) -count=1 -timeout 60m -p 1 -v $(ALONE)
	make --no-print-directory sim

.PHONY: test-short
test-short: arrows vet ## The tests that need only Go, in about a minute
	go test -short ./...

SEEDS ?= 2000
START ?= 1

.PHONY: sim
sim: ## Let SEEDS (2000) simulated worlds live, from seed START (1) on, and print what has happened in them
	go test -count=1 -timeout 4h -v -run '^TestSim$$' ./test/sim -seeds=$(SEEDS) -start=$(START)

.PHONY: bench
bench: ## Measure against the plain ways to do it; prints, and writes bench/out/
	scripts/with-services.sh go -C bench run . $(BENCH)

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME (30s)
	@for package in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

# CHAOS=4h make soak goes on for hours; LAPSE_E2E_SEED repeats a schedule.
CHAOS ?= 18m
.PHONY: chaos soak
chaos soak: ## Break everything, again and again, under load, and judge what is left (CHAOS=18m); the report goes to bin/chaos.json
	mkdir -p bin
	LAPSE_CHAOS=$(CHAOS) LAPSE_CHAOS_REPORT=$(CURDIR)/bin/chaos.json scripts/with-services.sh go test -count=1 -timeout 0 -v -run 'TestChaos$$' ./test/e2e

.PHONY: mutants
mutants: ## Plant one bug after the other and see that a test catches each; about ten minutes
	go run ./test/mutants

.PHONY: generate
generate: ## Write everything that is generated: the API's code, the OpenAPI file, references in docs/
	go generate ./...

.PHONY: verify
verify: ## Fail if what is generated differs from the files that are there
	@state() { git diff HEAD; git ls-files -z --others --exclude-standard | xargs -0 -r sha256sum; }; \
	state >.verify.before; trap 'rm -f .verify.before' EXIT; \
	make --no-print-directory generate; go mod tidy -diff; \
	state | diff -u .verify.before - || { echo "not up to date: run make generate and commit"; exit 1; }

.PHONY: lint
lint: ## Lint Go, proto files and shell scripts; the first run builds the linter, which takes minutes
	go tool -modfile=tools-lint.mod golangci-lint run ./...
	cd api && go tool -modfile=../tools.mod buf lint
	@if command -v promtool >/dev/null; then cd deploy/prometheus && promtool check config --syntax-only prometheus.yml && promtool test rules alerts_test.yml; else echo "promtool is not installed: alert rules not checked"; fi
	@if command -v shellcheck >/dev/null; then shellcheck scripts/*.sh .ci/run; else echo "shellcheck is not installed: scripts not checked"; fi

.PHONY: vulnerable
vulnerable: ## Look for known vulnerabilities in what the programs call; needs a network
	go tool -modfile=tools-vuln.mod govulncheck ./...

.PHONY: sbom
sbom: ## Write a bill of all that the programs are built from, as CycloneDX, to bin/sbom.cdx.json
	mkdir -p bin
	go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 mod -type application -json -licenses -output bin/sbom.cdx.json .

.PHONY: arrows
arrows: ## Check the import arrows between the packages
	scripts/check-arrows.sh

.PHONY: vet
vet: ## go vet
	go vet ./...
	if [ -f bench/go.mod ]; then go -C bench vet ./...; fi

.PHONY: clean
clean: ## Remove what was built or measured
	rm -rf bin bench/out

# The race detector needs a C compiler.
.PHONY: compiler
compiler:
	@command -v "$$(go env CC)" >/dev/null || scripts/apt-install.sh gcc libc6-dev
