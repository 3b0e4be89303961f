package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/redis/go-redis/v9"
)

// A RedisDurability says when Redis writes data that it has acknowledged.
type RedisDurability string

// The durabilities: nothing is written; the append-only file is synced before each answer.
const (
	RedisNone   RedisDurability = "none"
	RedisAlways RedisDurability = "always"
)

// RedisSettings are the other settings: no snapshots and no rewriting of the append-only file,
// which would take processor time during a run.
var RedisSettings = []string{
	"--port", "0", "--save", "", "--auto-aof-rewrite-percentage", "0", "--maxclients", "200", "--hz", "10", "--daemonize", "no", "--loglevel", "warning",
}

// Redis returns a func that makes a Redis server without starting it.
func Redis(d RedisDurability) func(context.Context, Options) (*Server, error) {
	return func(_ context.Context, o Options) (*Server, error) { return newRedis(o, d) }
}

func newRedis(o Options, d RedisDurability) (*Server, error) {
	path, err := find("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	socket, err := shortSocket("redis.sock")
	if err != nil {
		return nil, err
	}
	args := append([]string{"--unixsocket", socket, "--dir", o.Dir}, RedisSettings...)
	if d == RedisNone {
		args = append(args, "--appendonly", "no")
	} else {
		args = append(args, "--appendonly", "yes", "--appendfsync", string(d), "--no-appendfsync-on-rewrite", "yes")
	}
	s := &Server{Socket: socket, Data: o.Dir, sockets: filepath.Dir(socket)}
	s.start = func() *exec.Cmd { return exec.Command(path, args...) }
	s.answers = func(ctx context.Context) error {
		c := NewRedisClient(socket, 1)
		defer func() { _ = c.Close() }()
		return c.Ping(ctx).Err() // the error is LOADING while Redis reads its file
	}
	return s, nil
}

// NewRedisClient returns a client with that many connections.
func NewRedisClient(socket string, conns int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Network: "unix", Addr: socket, PoolSize: conns, MinIdleConns: conns, Protocol: 2, DisableIdentity: true,
		MaxRetries: -1, ReadTimeout: patience, WriteTimeout: patience, ReadBufferSize: 1 << 20, WriteBufferSize: 1 << 20,
	})
}

// shortSocket returns a path for a socket in a new directory, because such a path may have only
// about 100 bytes.
func shortSocket(name string) (string, error) {
	dir, err := os.MkdirTemp("", "peers-")
	if err != nil {
		return "", fmt.Errorf("making a directory for a socket: %w", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil { // for a server that runs as another user
		return "", err
	}
	return filepath.Join(dir, name), nil
}
