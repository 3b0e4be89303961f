package consumer

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/bench/peers/servers"
)

// redisSink claims with SET NX and adds with INCRBY. If a process dies between the two pipelines,
// it has claimed events whose amounts are never added.
type redisSink struct {
	order  *Order
	client *redis.Client
	script bool
}

// retention is how long claims are kept, the default of Hapax.
const retention = 4 * 7 * 24 * time.Hour

func openRedis(ctx context.Context, o *Order) (sink, error) {
	s := &redisSink{order: o, client: servers.NewRedisClient(o.Socket, len(o.Ends))}
	return s, s.client.Ping(ctx).Err()
}

func openRedisScript(ctx context.Context, o *Order) (sink, error) {
	s := &redisSink{order: o, client: servers.NewRedisClient(o.Socket, len(o.Ends)), script: true}
	return s, claimAndAdd.Load(ctx, s.client).Err()
}

func claimKey(id [16]byte) string { return "c" + string(id[:]) }

func accountKey(n int) string { return "a" + strconv.Itoa(n) }

func (s *redisSink) apply(ctx context.Context, partition int32, recs []*kgo.Record) error {
	if s.script {
		return s.applyScript(ctx, partition, recs)
	}
	claims := make([]*redis.BoolCmd, len(recs))
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, r := range recs {
			id, err := idOf(r)
			if err != nil {
				return err
			}
			claims[i] = p.SetNX(ctx, claimKey(id), 1, retention)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) { // Nil is the answer for a repeat
		return err
	}
	sums := newPayments(s.order.Work)
	for i, r := range recs {
		fresh, err := claims[i].Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if !fresh {
			continue
		}
		if err := sums.add(r); err != nil {
			return err
		}
	}
	if len(sums.moved) == 0 {
		return nil
	}
	_, err = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n, amount := range sums.moved {
			p.IncrBy(ctx, accountKey(s.order.account(partition, n)), amount)
		}
		return nil
	})
	return err
}

// claimAndAdd claims ids and adds the amounts of the new ones, atomically. Its arguments are the
// number of seconds for which claims are kept, and for each event its id, the two accounts and the
// amount, or only the id if there are no accounts. It returns how many ids were new.
var claimAndAdd = redis.NewScript(`
local ttl, step, fresh, moved = ARGV[1], tonumber(ARGV[2]), 0, {}
for i = 3, #ARGV, step do
  if redis.call('SET', 'c' .. ARGV[i], '1', 'NX', 'EX', ttl) then
    fresh = fresh + 1
    if step == 4 then
      local from, to, amount = ARGV[i+1], ARGV[i+2], tonumber(ARGV[i+3])
      moved[from] = (moved[from] or 0) - amount
      moved[to] = (moved[to] or 0) + amount
    end
  end
end
for account, amount in pairs(moved) do
  redis.call('INCRBY', 'a' .. account, string.format('%.0f', amount))
end
return fresh`)

// applyScript also decodes repeats, because the script needs the amounts before it knows which ids
// are new.
func (s *redisSink) applyScript(ctx context.Context, partition int32, recs []*kgo.Record) error {
	step := 4
	if s.order.Work == Claims {
		step = 1
	}
	args := make([]any, 0, 2+step*len(recs))
	args = append(args, int(retention/time.Second), step)
	for _, r := range recs {
		id, err := idOf(r)
		if err != nil {
			return err
		}
		p, err := decodePayment(r.Value)
		if err != nil {
			return err
		}
		args = append(args, id[:])
		if step == 4 {
			args = append(args, s.order.account(partition, p.From), s.order.account(partition, p.To), p.Amount)
		}
	}
	return claimAndAdd.Run(ctx, s.client, nil, args...).Err()
}

func (s *redisSink) offsets(context.Context) ([]int64, error) { return nil, nil }

func (s *redisSink) state(ctx context.Context) (Result, error) {
	keys, err := s.client.DBSize(ctx).Result()
	if err != nil {
		return Result{}, err
	}
	kept := make(map[int]int64)
	for n := range s.order.all() {
		switch balance, err := s.client.Get(ctx, accountKey(n)).Int64(); {
		case errors.Is(err, redis.Nil):
		case err != nil:
			return Result{}, err
		default:
			kept[n] = balance
			keys--
		}
	}
	return Result{Claims: uint64(keys), Balances: s.order.fold(kept)}, nil
}

func (s *redisSink) close() error { return s.client.Close() }
