package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/engine/storetest"
	"github.com/hapax-dev/hapax/idempotency"
)

func Example() {
	dir, err := os.MkdirTemp("", "keys")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := bolt.Open(dir, bolt.Options{})
	if err != nil {
		log.Fatal(err)
	}
	eng, err := engine.Open(store, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	protect, err := idempotency.New(eng, idempotency.Options{
		Tenant: func(r *http.Request) (string, error) {
			user, _, ok := r.BasicAuth() // verified by a middleware before this one
			if !ok {
				return "", &idempotency.StatusError{Status: http.StatusUnauthorized, Err: errors.New("no credentials")}
			}
			return user, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	payments := 0
	server := httptest.NewServer(protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments)
	})))
	defer server.Close()

	client := &http.Client{Transport: &idempotency.Transport{}}
	retries, err := idempotency.WithNewKey(ctx) // one key for all attempts
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		req, err := http.NewRequestWithContext(retries, http.MethodPost, server.URL, strings.NewReader(`{"amount": 10}`))
		if err != nil {
			log.Fatal(err)
		}
		req.SetBasicAuth("alice", "")
		resp, err := client.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Printf("%d %s %q\n", resp.StatusCode, body, resp.Header.Get(idempotency.ReplayedHeader))
	}
	// Output:
	// 201 payment 1 ""
	// 201 payment 1 "true"
}

// A handler that books a payment in the transaction that finishes its key.
func ExampleUpdate() {
	// a service opens engine/bolt or engine/pebble
	eng, err := engine.Open(storetest.NewMem(storage.Identity{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer eng.Close()
	protect, err := idempotency.New(eng, idempotency.Options{SharedKeys: true}) // one caller
	if err != nil {
		log.Fatal(err)
	}
	errPoor := errors.New("the balance is too low")
	pay := func(w http.ResponseWriter, r *http.Request) {
		err := idempotency.Update(r.Context(), func(tx *engine.Tx, w http.ResponseWriter) error {
			value, _, err := tx.Get([]byte("alice"))
			if err != nil {
				return err
			}
			balance := 100
			if len(value) > 0 {
				balance, _ = strconv.Atoi(string(value))
			}
			if balance < 60 {
				return errPoor
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "balance %d", balance-60)
			return tx.Put([]byte("alice"), strconv.AppendInt(nil, int64(balance-60), 10))
		}, engine.Retries(10))
		switch {
		case errors.Is(err, errPoor): // nothing was committed: the rejection is the response
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}
	handler := protect(http.HandlerFunc(pay))
	for _, key := range []string{"first", "first", "second", "second"} {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set(idempotency.KeyHeader, key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%s: %d %s\n", key, w.Code, strings.TrimSpace(w.Body.String()))
	}
	// Output:
	// first: 201 balance 40
	// first: 201 balance 40
	// second: 422 the balance is too low
	// second: 422 the balance is too low
}
