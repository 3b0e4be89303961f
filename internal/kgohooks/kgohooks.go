// Package kgohooks makes several Kafka clients with the same hooks. A hook that registers metrics
// in OnNewClient, such as kprom, panics when it is called for a second client, but a consumer and a
// relay make several clients.
package kgohooks

import (
	"reflect"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// An Owner makes clients whose hooks learn of one client only. OnNewClient is called for the first
// client with the hook, of all owners in this process. OnClientClosed is called with that client
// when the last of these owners is closed. After that, OnNewClient can be called for a new client.
// All other methods of the hook are called for every client. For a hook that cannot be compared,
// OnNewClient is called for each client. The zero Owner is ready for use, and safe for concurrent
// use.
type Owner struct {
	mu    sync.Mutex
	hooks map[kgo.Hook]struct{}
	gate  *gate // of the hooks
}

// NewClient is kgo.NewClient.
func (o *Owner) NewClient(opts ...kgo.Opt) (*kgo.Client, error) {
	return replacer(o.share).client(opts)
}

// Close ends the use of the hooks. All clients of the owner must be closed.
func (o *Owner) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gate != nil {
		o.gate.close()
	}
	for h := range o.hooks {
		release(h)
	}
	o.hooks, o.gate = nil, nil
}

// Probe makes a client whose options can be read. Its hooks are not called.
func Probe(opts ...kgo.Opt) (*kgo.Client, error) {
	return replacer(func(*kgo.Client, kgo.Hook) kgo.Hook { return struct{}{} }).client(opts)
}

// A replacer is the first hook of a client. It replaces the other hooks in the client's list before
// they are called, and before the client starts its goroutines.
type replacer func(*kgo.Client, kgo.Hook) kgo.Hook

var _ kgo.HookNewClient = replacer(nil)

func (r replacer) client(opts []kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.WithHooks(r)}, opts...)...)
}

// OnNewClient implements [kgo.HookNewClient].
func (r replacer) OnNewClient(c *kgo.Client) {
	list := reflect.ValueOf(c.OptValue(kgo.WithHooks)).Convert(reflect.TypeFor[[]kgo.Hook]()).Interface().([]kgo.Hook)
	for i, h := range list {
		if _, own := h.(replacer); !own {
			list[i] = r(c, h)
		}
	}
}

// share returns the hook that a new client calls instead of the given one.
func (o *Owner) share(c *kgo.Client, h kgo.Hook) kgo.Hook {
	_, begins := h.(kgo.HookNewClient)
	_, ends := h.(kgo.HookClientClosed)
	if !begins && !ends || !reflect.ValueOf(h).Comparable() {
		return h
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gate == nil {
		o.gate = new(gate)
	}
	s := shared{h, o.gate}
	if _, known := o.hooks[h]; !known {
		if o.hooks == nil {
			o.hooks = make(map[kgo.Hook]struct{})
		}
		o.hooks[h] = struct{}{}
		acquire(c, h)
	}
	if ofRecords(h) {
		return sharedOfRecords{s}
	}
	return s
}

// registered has the hooks whose OnNewClient was called.
var (
	mu         sync.Mutex
	registered = map[kgo.Hook]*registration{}
)

type registration struct {
	client *kgo.Client // the client for which OnNewClient was called
	owners int
	begin  sync.Once // calls OnNewClient
}

// acquire calls OnNewClient of the hook for the client, or waits for the end of the call for another
// client: the hook gets no other call before.
func acquire(c *kgo.Client, h kgo.Hook) {
	r := use(c, h)
	r.begin.Do(func() {
		if n, ok := h.(kgo.HookNewClient); ok {
			n.OnNewClient(r.client)
		}
	})
}

// use adds an owner of the hook.
func use(c *kgo.Client, h kgo.Hook) *registration {
	mu.Lock()
	defer mu.Unlock()
	r, known := registered[h]
	if !known {
		r = &registration{client: c}
		registered[h] = r
	}
	r.owners++
	return r
}

// release calls OnClientClosed. A hook without that method remains registered.
func release(h kgo.Hook) {
	mu.Lock()
	defer mu.Unlock()
	r := registered[h]
	r.owners--
	if end, ok := h.(kgo.HookClientClosed); ok && r.owners == 0 {
		end.OnClientClosed(r.client)
		delete(registered, h)
	}
}
