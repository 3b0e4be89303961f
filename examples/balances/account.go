package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/kafkaadapter"
)

// A transfer moves an amount, in cents, from one account to another.
type transfer struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Amount int64  `json:"amount"`
}

func parse(b []byte) (t transfer, err error) {
	if err = json.Unmarshal(b, &t); err != nil {
		return t, err
	}
	if t.From == "" || t.To == "" || t.Amount <= 0 {
		return t, errors.New("a transfer has two accounts and an amount above zero")
	}
	return t, nil
}

// accounts has a running balance for each account, as application keys of the engine's store.
type accounts struct {
	tracer trace.Tracer
}

// book moves the amount of a transfer. Both balances, the claim and the next offset commit in one
// batch, and a transfer that cannot be booked changes neither balance.
func (a accounts) book(ctx context.Context, tx *engine.Tx, rec *kafkaadapter.Record) error {
	_, span := a.tracer.Start(ctx, "book transfer", trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.Int("attempt", rec.Attempt)))
	defer span.End()
	t, err := parse(rec.Value)
	if err != nil {
		return kafkaadapter.Permanent(err) // no further attempt would succeed, so it becomes a dead letter at once
	}
	if err := a.add(tx, t.From, -t.Amount); err != nil {
		return err
	}
	return a.add(tx, t.To, t.Amount)
}

func (a accounts) add(tx *engine.Tx, account string, amount int64) error {
	b, err := a.balance(tx, account)
	if err != nil {
		return err
	}
	return tx.Put(balanceKey(account), strconv.AppendInt(nil, b+amount, 10))
}

// balance returns the balance of an account, 0 if nothing was booked on it.
func (accounts) balance(tx *engine.Tx, account string) (int64, error) {
	b, found, err := tx.Get(balanceKey(account))
	if err != nil || !found {
		return 0, err
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("balance of %s: %w", account, err)
	}
	return n, nil
}

func balanceKey(account string) []byte { return []byte("balance/" + account) }
