# make test lint bench: nothing to remember. Tool versions are pinned in tools.env.
include tools.env
BIN := $(CURDIR)/bin
export PATH := $(BIN):$(PATH)
# The linter keys its cache by content and stores paths in it: a cache shared by checkouts names files of those that are gone.
export GOLANGCI_LINT_CACHE ?= $(BIN)/lint-cache

.PHONY: test race fuzz lint cross edge kafka-up kafka-down kafka-kill test-kafka bench compare peers demo clean

test:            ## all tests of all modules, on a machine with nothing but Go
	./.ci/each-module go test ./...

race:            ## all tests under the race detector (needs a C compiler)
	./.ci/each-module go test -race ./...

fuzz:            ## every fuzz target for a short time: make fuzz FUZZTIME=5m for longer
	./.ci/fuzz $(FUZZTIME)

lint: $(BIN)/golangci-lint-$(GOLANGCI_LINT)
	./.ci/each-module go vet ./...
	./.ci/each-module $(BIN)/golangci-lint-$(GOLANGCI_LINT) run ./...

$(BIN)/golangci-lint-$(GOLANGCI_LINT):
	./.ci/install-lint $(BIN) $(GOLANGCI_LINT)

cross:           ## the platforms that must build without cgo
	./.ci/cross

edge:            ## tests of an edge build for arm and arm64, under qemu-user
	./.ci/edge

kafka-up:        ## a real Apache Kafka on 127.0.0.1:9092; KAFKA_PORT=free for another port
	./.ci/kafka/broker up

kafka-down:      ## stops it and removes its data; KEEP=1 keeps them
	./.ci/kafka/broker down

kafka-kill:      ## SIGKILL; kafka-up starts it again on the same data
	./.ci/kafka/broker kill

test-kafka:      ## the tests that use a broker, against KAFKA_BROKERS or a real Kafka of their own: ARGS="-run Restart"
	./.ci/test-kafka $(ARGS)

bench:           ## the first figure of docs/benchmarks.md, with fewer claims
	go run ./cmd/dedupbench claims --n 2000000 --dup 0.05 --batch 1000 --baseline

compare:         ## processor time compared with the last recorded commit, in turns: ARGS=HEAD~10 for another commit
	./.ci/compare $(ARGS)

peers:           ## compared with Redis, Postgres and others, on a real Kafka: two hours; ARGS="claims --rounds 1"
	./bench/peers/run $(ARGS)

demo:
	go run ./cmd/dedupbench demo

clean:
	[ ! -d .kafka ] || ./.ci/kafka/broker down
	rm -rf $(BIN) .kafka
