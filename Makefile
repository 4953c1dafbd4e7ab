# make           bin/edgemq
# make test      everything that must hold, with the race detector
# make check     test, and what else CI looks at: format, vet, staticcheck
# make bench     the benchmarks in the packages, COUNT times (default 1; 6 for benchstat), those that match BENCH
# make contest   N messages (default 1000000), kill -9 of clients and broker, everything read back; SDK and raw sockets
# make torture   IMAGES power cuts (default 10000), ROUNDS of kill -9 (default 500), FAILURES of disks (default 2000), and what networks do,
#                judged by a model of what is promised (docs/RELIABILITY.md); each part for DURATION at most
# make torture-mutants  deliberately broken builds: each must be noticed
# make soak      a little of everything for SOAK (default 20m): memory, descriptors and goroutines must stay flat
# make fuzz      every fuzz target for FUZZTIME (default 60s)

FUZZTIME    ?= 60s
BENCHTIME   ?= 1s
BENCH       ?= .
COUNT       ?= 1
N           ?= 1000000
IMAGES      ?= 10000
ROUNDS      ?= 500
FAILURES    ?= 2000
DURATION    ?= 0
SOAK        ?= 20m
SEED        ?= $(shell date +%s)
# Pinned: a new release of a linter must not turn a green tree red.
GOFUMPT     ?= go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK ?= go run honnef.co/go/tools/cmd/staticcheck@v0.8.2

version := $(shell git describe --tags --always --dirty 2>/dev/null)
commit  := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
ldflags := -s -w -X main.version=$(version) -X main.commit=$(commit)

.PHONY: build test check format lint bench fuzz contest torture torture-mutants soak clean
build:
	go build -trimpath -ldflags '$(ldflags)' -o bin/edgemq ./cmd/edgemq

# Most tests wait for a disk or a clock, not for a processor: more of them run beside each other than there are cores.
test:
	go test -race -parallel 6 -timeout 10m ./...

check: lint test

format:
	$(GOFUMPT) -w .

lint:
	@out="$$(gofmt -l .)"; [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	@out="$$($(GOFUMPT) -l .)" || exit 1; [ -z "$$out" ] || { echo "make format would change:"; echo "$$out"; exit 1; }
	go vet ./...
	$(STATICCHECK) ./...

# One package after the other: benchmarks that run beside others measure them too.
bench:
	go test -p 1 -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -count $(COUNT) -timeout 2h ./...

# go test -fuzz takes one target of one package at a time.
fuzz:
	@set -e; for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; \
	done

tortures := go test ./internal/torture -v -count=1 -timeout 24h -duration $(DURATION) -seed $(SEED)
torture:
	$(tortures) -run '^TestPowerCuts' -images $(IMAGES)
	$(tortures) -run '^TestKills$$' -rounds $(ROUNDS)
	$(tortures) -run '^(TestDiskErrors|TestBitFlips)$$' -failures $(FAILURES)
	$(tortures) -heavy -parallel 1 -skip '^(TestPowerCuts|TestPowerCutsOfQoS2|TestKills|TestDiskErrors|TestBitFlips|TestSoak)$$'

torture-mutants:
	go run ./internal/torture/mutants

soak:
	go test ./internal/torture -v -count=1 -timeout 24h -run '^TestSoak$$' -soak $(SOAK)

contest: build
	go build -trimpath -o bin/contest ./examples/contest
	bin/contest -edgemq bin/edgemq -n $(N)
	bin/contest -edgemq bin/edgemq -n $(N) -raw

clean:
	rm -rf bin
