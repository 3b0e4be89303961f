package consumer

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/peers/servers"
)

// postgresSink keeps claims, balances and offsets in tables, and changes them in one transaction
// for each batch.
type postgresSink struct {
	order *Order
	pool  *pgxpool.Pool
}

// The tables. Rows of accounts change often, so their pages keep room for new versions.
const tables = `
CREATE TABLE IF NOT EXISTS claims (id uuid PRIMARY KEY);
CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS offsets (part int PRIMARY KEY, next bigint NOT NULL) WITH (fillfactor = 10);`

func openPostgres(ctx context.Context, o *Order) (sink, error) {
	config, err := pgxpool.ParseConfig(servers.PostgresAddress(o.Socket))
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(len(o.Ends))
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		pool.Close()
		return nil, fmt.Errorf("making the tables: %w", err)
	}
	return &postgresSink{order: o, pool: pool}, nil
}

func (s *postgresSink) apply(ctx context.Context, partition int32, recs []*kgo.Record) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	fresh, err := s.claim(ctx, conn, recs)
	if err != nil {
		return err
	}
	sums := newPayments(s.order.Work)
	for _, r := range fresh {
		if err := sums.add(r); err != nil {
			return err
		}
	}
	return s.finish(ctx, conn, partition, sums, recs[len(recs)-1].Offset+1)
}

// claim begins a transaction, inserts the ids in order, and returns the records that are new.
func (s *postgresSink) claim(ctx context.Context, conn *pgxpool.Conn, recs []*kgo.Record) (fresh []*kgo.Record, err error) {
	byID := make(map[uuid.UUID]*kgo.Record, len(recs))
	ids := make([]pgtype.UUID, 0, len(recs))
	for _, r := range recs {
		id, err := idOf(r)
		if err != nil {
			return nil, err
		}
		if byID[id] == nil {
			byID[id] = r
			ids = append(ids, pgtype.UUID{Bytes: id, Valid: true})
		}
	}
	slices.SortFunc(ids, func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) })
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue("INSERT INTO claims SELECT unnest($1::uuid[]) ON CONFLICT DO NOTHING RETURNING id", ids)
	sent := conn.SendBatch(ctx, &b)
	defer func() {
		if cerr := sent.Close(); err == nil {
			err = cerr
		}
	}()
	if _, err := sent.Exec(); err != nil {
		return nil, err
	}
	rows, err := sent.Query()
	if err != nil {
		return nil, err
	}
	fresh = make([]*kgo.Record, 0, len(ids))
	var id pgtype.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		fresh = append(fresh, byID[id.Bytes])
		return nil
	})
	return fresh, err
}

// finish adds to the balances in order, sets the offset, and commits.
func (s *postgresSink) finish(ctx context.Context, conn *pgxpool.Conn, partition int32, sums *payments, next int64) error {
	var b pgx.Batch
	if len(sums.moved) > 0 {
		accounts := make([]int32, 0, len(sums.moved))
		for n := range sums.moved {
			accounts = append(accounts, int32(n))
		}
		slices.Sort(accounts)
		amounts := make([]int64, len(accounts))
		for i, n := range accounts {
			amounts[i] = sums.moved[int(n)]
			accounts[i] = int32(s.order.account(partition, int(n)))
		}
		b.Queue("INSERT INTO accounts SELECT * FROM unnest($1::int[], $2::bigint[]) ON CONFLICT (id) DO UPDATE SET balance = accounts.balance + excluded.balance",
			accounts, amounts)
	}
	b.Queue("INSERT INTO offsets VALUES ($1, $2) ON CONFLICT (part) DO UPDATE SET next = excluded.next", partition, next)
	b.Queue("COMMIT")
	return conn.SendBatch(ctx, &b).Close()
}

func (s *postgresSink) offsets(ctx context.Context) ([]int64, error) {
	next := make([]int64, len(s.order.Ends))
	rows, err := s.pool.Query(ctx, "SELECT part, next FROM offsets")
	if err != nil {
		return nil, err
	}
	var part int32
	var at int64
	_, err = pgx.ForEachRow(rows, []any{&part, &at}, func() error {
		next[part] = at
		return nil
	})
	return next, err
}

func (s *postgresSink) state(ctx context.Context) (r Result, err error) {
	if err := s.pool.QueryRow(ctx, "SELECT count(*) FROM claims").Scan(&r.Claims); err != nil {
		return r, err
	}
	rows, err := s.pool.Query(ctx, "SELECT id, balance FROM accounts")
	if err != nil {
		return r, err
	}
	kept := make(map[int]int64)
	var id int
	var balance int64
	_, err = pgx.ForEachRow(rows, []any{&id, &balance}, func() error {
		kept[id] = balance
		return nil
	})
	r.Balances = s.order.fold(kept)
	return r, err
}

func (s *postgresSink) close() error {
	s.pool.Close()
	return nil
}
