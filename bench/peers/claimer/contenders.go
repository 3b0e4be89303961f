package claimer

import (
	"context"
	"time"

	"github.com/hapax-dev/hapax/bench/peers/servers"
)

// A Contender is one system that keeps claims.
type Contender struct {
	Name string
	// Settings are tried, and the fastest is measured. Empty: there is only one setting.
	Settings []string
	// Server makes its server without starting it; nil: it has none.
	Server func(ctx context.Context, o servers.Options) (*servers.Server, error)
	// Durability says what is durable when a call returns, and How describes the configuration.
	Durability, How string

	oneProcess bool // its server has one process
	open       func(ctx context.Context, o *Order) (claims, error)
}

// retention is how long claims are kept, the default of Hapax.
const retention = 4 * 7 * 24 * time.Hour

const redisHow = "Unix socket, a connection for each call in flight; SET NX EX in one pipeline for each batch, keys of 17 bytes"

// Contenders are all contenders, in the order of the tables.
var Contenders = []Contender{
	{Name: "go-map", open: openMap, Durability: "nothing", How: "a map of 16-byte ids under one lock, nothing expires"},
	{Name: "redis", open: openRedis, Server: servers.Redis(servers.RedisNone), oneProcess: true, Durability: "nothing", How: redisHow},
	{Name: "redis-always", open: openRedis, Server: servers.Redis(servers.RedisAlways), oneProcess: true,
		Durability: "synced before the answer (appendfsync always)", How: redisHow},
	{Name: "postgres", open: openPostgres, Server: servers.Postgres,
		Durability: "synced before the answer", How: "Unix socket; a sorted array of ids in binary for each batch, INSERT ... ON CONFLICT DO NOTHING, primary key uuid"},
	{Name: "badger", open: openBadger, Settings: []string{"lock", "conflicts"},
		Durability: "synced before the answer (SyncWrites)", How: "Get and SetEntry with a TTL in one transaction for each batch, under a lock or with conflict detection and another attempt; no compression"},
	{Name: "hapax", open: openHapax,
		Durability: "synced before the answer", How: "Engine.TryClaimBatch on engine/pebble, all defaults; keeps origin and time of the first sighting"},
}

// find returns the contender of a name.
func find(name string) (Contender, bool) {
	for _, c := range Contenders {
		if c.Name == name {
			return c, true
		}
	}
	return Contender{}, false
}
