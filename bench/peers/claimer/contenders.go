package claimer

import (
	"context"
	"os"
	"time"

	"github.com/hapax-dev/hapax/bench/peers/servers"
)

// A Contender is one system that keeps claims.
type Contender struct {
	Name string
	// Settings are tried; the quickest is measured. Empty: there is one way only.
	Settings []string
	// InFlight are the numbers of calls at once that are tried; nil: those of the run.
	InFlight []int
	// Rows means that each id is a call of its own; the size of a batch changes nothing.
	Rows bool
	// Blind means that it never says whether an id is new.
	Blind bool
	// Server makes its server, which is not started; nil: it has none.
	Server func(ctx context.Context, o servers.Options) (*servers.Server, error)
	// Durability says what an answer rests on, and How how it is set up.
	Durability, How string

	oneProcess bool // its server has one process
	open       func(ctx context.Context, o *Order) (claims, error)
}

// retention is how long claims are kept, as the default of Hapax.
const retention = 4 * 7 * 24 * time.Hour

func redisServer(d servers.RedisDurability) func(context.Context, servers.Options) (*servers.Server, error) {
	return func(ctx context.Context, o servers.Options) (*servers.Server, error) { return servers.Redis(ctx, o, d) }
}

const redisHow = "Unix socket, a connection for each call in flight; SET NX EX in one pipeline for each batch, keys of 17 bytes"

// Contenders are all of them, in the order of the tables.
var Contenders = []Contender{
	{Name: "go-map", open: openMap, Durability: "nothing", How: "a map of 16-byte ids under one lock, nothing expires"},
	{Name: "watermill", open: openWatermill, Durability: "nothing", How: "NewMapExpiringKeyRepository, ids as text"},
	{Name: "redis", open: openRedis, Server: redisServer(servers.RedisNone), oneProcess: true, Durability: "nothing", How: redisHow},
	{Name: "redis-everysec", open: openRedis, Server: redisServer(servers.RedisEverysec), oneProcess: true,
		Durability: "the last second may be lost with the machine (appendfsync everysec)", How: redisHow},
	{Name: "redis-always", open: openRedis, Server: redisServer(servers.RedisAlways), oneProcess: true,
		Durability: "synced before the answer (appendfsync always)", How: redisHow},
	{Name: "postgres", open: openPostgres, Server: servers.Postgres,
		Durability: "synced before the answer", How: "Unix socket; a sorted array of ids in binary for each batch, INSERT ... ON CONFLICT DO NOTHING, primary key uuid"},
	{Name: "postgres-rows", open: openPostgresRows, Server: servers.Postgres, Rows: true, InFlight: []int{8, 32, 64},
		Durability: "synced before the answer", How: "as postgres, one prepared INSERT and one transaction for each id"},
	{Name: "badger", open: openBadger, Settings: []string{"lock", "conflicts"},
		Durability: "synced before the answer (SyncWrites)", How: "Get and SetEntry with a TTL in one transaction for each batch, under a lock or with conflict detection and another attempt; no compression"},
	{Name: "bbolt", open: openBolt, Settings: []string{"fill=50%", "fill=90%"},
		Durability: "synced before the answer", How: "one Update for each batch, ids sorted, Get and Put; free list as a map, not synced"},
	{Name: "pebble-get-set", open: openPebble, Settings: []string{"memtable=8MB", "memtable=64MB"},
		Durability: "synced before the answer", How: "a lock around Get of each id and applying the batch, the sync outside it; bloom filters of 10 bits"},
	{Name: "pebble-blind", open: openPebbleBlind, Settings: []string{"memtable=8MB", "memtable=64MB"}, Blind: true,
		Durability: "synced before the answer", How: "Set of each id in a batch; answers nothing: what Pebble alone costs"},
	{Name: "hapax", open: openHapax,
		Durability: "synced before the answer", How: "Engine.TryClaimBatch on engine/pebble, all defaults; keeps origin and time of the first sighting"},
}

// Find returns the contender of a name.
func Find(name string) (Contender, bool) {
	for _, c := range Contenders {
		if c.Name == name {
			return c, true
		}
	}
	return Contender{}, false
}

func self() int { return os.Getpid() }
