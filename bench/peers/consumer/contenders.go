package consumer

import (
	"context"

	"github.com/hapax-dev/hapax/bench/peers/servers"
	"github.com/hapax-dev/hapax/bench/peers/streams"
)

// A Contender is one way to consume the topic.
type Contender struct {
	Name string
	// Works are the kinds of work that it can do.
	Works []Work
	// Server makes its server without starting it; nil: it has none.
	Server func(ctx context.Context, o servers.Options) (*servers.Server, error)
	// Build builds its program, for Order.Program; nil: it has none.
	Build func(ctx context.Context, o servers.Options) (string, error)
	// Brokers means that its state is in the brokers. They are then measured and killed with it.
	// The names of the topics that it makes begin with the name of its group.
	Brokers bool
	// Durability says what is durable when a batch is done, and Settings describes the
	// configuration.
	Durability, Settings string

	open func(ctx context.Context, o *Order) (sink, error)
	run  func(ctx context.Context, o Order, progress func(uint64)) (Result, error)
}

var allWorks = []Work{Shared, Partition, Claims}

// Contenders are all contenders, in the order of the tables.
var Contenders = []Contender{
	{
		Name: "map", Works: allWorks, open: openMap,
		Durability: "nothing",
		Settings:   "one goroutine polls and handles; a Go map of 16-byte ids, a map of balances; offsets committed ten times a second",
	},
	{
		Name: "redis", Works: allWorks, open: openRedis, Server: servers.Redis(servers.RedisNone),
		Durability: "nothing: claims and balances are in the memory of the server",
		Settings:   "Unix socket, a connection for each partition; SET NX EX of 2,000 ids in one pipeline, then one INCRBY for each account in a second one",
	},
	{
		Name: "redis-always", Works: allWorks, open: openRedis, Server: servers.Redis(servers.RedisAlways),
		Durability: "each answer is synced to the append-only file (appendfsync always); claims before balances",
		Settings:   "as redis",
	},
	{
		Name: "redis-script", Works: allWorks, open: openRedisScript, Server: servers.Redis(servers.RedisNone),
		Durability: "nothing: claims and balances are in the memory of the server, and change together",
		Settings:   "Unix socket, a connection for each partition; one Lua script claims 2,000 ids and adds to the balances",
	},
	{
		Name: "redis-script-always", Works: allWorks, open: openRedisScript, Server: servers.Redis(servers.RedisAlways),
		Durability: "claims and balances of a batch are synced together (appendfsync always)",
		Settings:   "as redis-script",
	},
	{
		Name: "postgres", Works: allWorks, open: openPostgres, Server: servers.Postgres,
		Durability: "a synced transaction with claims, balances and offset for each 2,000 records of a partition",
		Settings:   "Unix socket, a connection for each partition; arrays of ids in binary, INSERT ... ON CONFLICT DO NOTHING RETURNING; one upsert of summed balances, in order, so that nothing deadlocks; shared_buffers 1 GB, no checkpoint during a run",
	},
	{
		Name: "kafka-streams", Works: allWorks, run: runStreams, Build: streams.Build, Brokers: true,
		Durability: "a transaction of Kafka with claims, balances and offsets every 100 ms (exactly_once_v2), acknowledged by the broker, which does not sync",
		Settings: "Java in a process that is warm; decodes, then a repartition by id, claims in memory with a changelog, totals of each task, " +
			"a repartition by account for their sums; two threads, caches for balances; its usage contains the broker's",
	},
	{
		Name: "pebble", Works: allWorks, open: openPebble,
		Durability: "a synced batch with claims, balances and offset for each 2,000 records of a partition",
		Settings:   "one lock around Get of each id, decoding, and applying the batch; the sync is waited for outside it, so that partitions share syncs; 64 MB memory tables, bloom filters of 10 bits, balances cached in memory",
	},
	{
		Name: "hapax", Works: allWorks, run: runHapax,
		Durability: "a synced transaction with claims, balances and offset for each batch of the adapter",
		Settings:   "kafkaadapter in mode Transactional on engine/pebble, all defaults; Transactional.Decode decodes, the handler reads and writes the balances",
	},
	{
		Name: "hapax-add", Works: []Work{Shared, Partition}, run: runHapaxAdd,
		Durability: "as hapax",
		Settings:   "as hapax; the handler adds to the balances with Tx.Add",
	},
}

func find(name string) (Contender, bool) {
	for _, c := range Contenders {
		if c.Name == name {
			return c, true
		}
	}
	return Contender{}, false
}
