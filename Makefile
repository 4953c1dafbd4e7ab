# make           bin/edgemq
# make test      everything that must hold, with the race detector
# make check     test, and what else CI looks at: format, vet, staticcheck
# make bench     the benchmarks in the packages, COUNT times (default 1; 6 for benchstat), those that match BENCH
# make contest   N messages (default 1000000), kill -9 of clients and broker, everything read back; SDK and raw sockets
# make torture   IMAGES power cuts (default 10000), ROUNDS of kill -9 (default 500), judged by a model of what is promised
# make fuzz      every fuzz target for FUZZTIME (default 60s)

FUZZTIME    ?= 60s
BENCHTIME   ?= 1s
BENCH       ?= .
COUNT       ?= 1
N           ?= 1000000
IMAGES      ?= 10000
ROUNDS      ?= 500
DURATION    ?= 0
SEED        ?= $(shell date +%s)
# Pinned: a new release of a linter must not turn a green tree red.
GOFUMPT     ?= go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK ?= go run honnef.co/go/tools/cmd/staticcheck@v0.8.2

version := $(shell git describe --tags --always --dirty 2>/dev/null)
commit  := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
ldflags := -s -w -X main.version=$(version) -X main.commit=$(commit)

.PHONY: build test check format lint bench fuzz contest torture clean
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

torture:
	go test ./internal/torture -v -count=1 -timeout 24h -run '^TestPowerCuts$$' -images $(IMAGES) -duration $(DURATION) -seed $(SEED)
	go test ./internal/torture -v -count=1 -timeout 24h -run '^TestKills$$' -rounds $(ROUNDS) -duration $(DURATION) -seed $(SEED)

contest: build
	go build -trimpath -o bin/contest ./examples/contest
	bin/contest -edgemq bin/edgemq -n $(N)
	bin/contest -edgemq bin/edgemq -n $(N) -raw

clean:
	rm -rf bin
