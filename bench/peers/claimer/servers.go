package claimer

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/hapax-dev/hapax/bench/peers/servers"
)

type redisClaims struct{ client *redis.Client }

func openRedis(ctx context.Context, o *Order) (claims, error) {
	c := servers.NewRedisClient(o.Socket, o.InFlight)
	return redisClaims{c}, c.Ping(ctx).Err()
}

func (r redisClaims) claim(ctx context.Context, ids []uuid.UUID) (fresh int, err error) {
	answers := make([]*redis.BoolCmd, len(ids))
	_, err = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, id := range ids {
			answers[i] = p.SetNX(ctx, "c"+string(id[:]), 1, retention)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) { // Nil is the answer for a repeat
		return 0, err
	}
	for _, a := range answers {
		switch is, err := a.Result(); {
		case err != nil && !errors.Is(err, redis.Nil):
			return fresh, err
		case is:
			fresh++
		}
	}
	return fresh, nil
}

func (r redisClaims) close() error { return r.client.Close() }

type postgresClaims struct{ pool *pgxpool.Pool }

func openPostgres(ctx context.Context, o *Order) (claims, error) {
	config, err := pgxpool.ParseConfig(servers.PostgresAddress(o.Socket))
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(o.InFlight)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS claims (id uuid PRIMARY KEY)")
	return &postgresClaims{pool}, err
}

func (p *postgresClaims) claim(ctx context.Context, ids []uuid.UUID) (int, error) {
	sorted := make([]pgtype.UUID, len(ids)) // sorted ids cannot deadlock, and each page is visited once
	for i, id := range ids {
		sorted[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	slices.SortFunc(sorted, func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) })
	tag, err := p.pool.Exec(ctx, "INSERT INTO claims SELECT unnest($1::uuid[]) ON CONFLICT DO NOTHING", sorted)
	return int(tag.RowsAffected()), err
}

func (p *postgresClaims) close() error {
	p.pool.Close()
	return nil
}
