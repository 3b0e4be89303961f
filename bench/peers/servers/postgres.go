package servers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// PostgresSettings are the settings under which Postgres is measured: everything that makes it
// faster without giving up durability.
var PostgresSettings = map[string]string{
	"listen_addresses":             "",
	"max_connections":              "100",
	"shared_buffers":               "1GB",
	"synchronous_commit":           "on",
	"fsync":                        "on",
	"full_page_writes":             "on",
	"wal_level":                    "minimal",
	"max_wal_senders":              "0",
	"wal_buffers":                  "64MB",
	"max_wal_size":                 "16GB",
	"min_wal_size":                 "1GB",
	"checkpoint_timeout":           "1h",
	"checkpoint_completion_target": "0.9",
	"jit":                          "off",
	"random_page_cost":             "1.1",
	"work_mem":                     "64MB",
	"track_activities":             "off",
	"track_counts":                 "on", // for autovacuum
	"huge_pages":                   "try",
	"log_min_messages":             "fatal",
	"log_min_error_statement":      "panic",
}

// Postgres makes a new database cluster and returns its server, which is not started.
func Postgres(ctx context.Context, o Options) (*Server, error) {
	path, err := find("postgres", "postgresql", "/usr/lib/postgresql/*/bin/postgres")
	if err == nil {
		path, err = filepath.EvalSymlinks(path) // initdb is in the same directory
	}
	if err != nil {
		return nil, err
	}
	socket, err := shortSocket("")
	if err != nil {
		return nil, err
	}
	socket = filepath.Clean(socket)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	setUp := exec.CommandContext(ctx, filepath.Join(filepath.Dir(path), "initdb"), "-D", o.Dir, "-U", "peers", "--auth=trust",
		"-E", "UTF8", "--locale=C", "--wal-segsize=64", "--no-sync")
	setUp.Dir = "/"
	if err := asUser(setUp, o.Dir); err != nil {
		return nil, err
	}
	if out, err := setUp.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	args := []string{"-D", o.Dir, "-k", socket}
	for name, value := range PostgresSettings {
		args = append(args, "-c", name+"="+value)
	}
	s := &Server{Socket: socket, Data: o.Dir, sockets: socket}
	s.start = func() *exec.Cmd {
		cmd := exec.Command(path, args...)
		cmd.Dir = "/"
		_ = asUser(cmd) // the calls above show that it works
		return cmd
	}
	s.answers = func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, PostgresAddress(socket))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	return s, nil
}

// PostgresAddress is the connection string for clients.
func PostgresAddress(socket string) string {
	return "host=" + socket + " user=peers database=postgres sslmode=disable"
}
