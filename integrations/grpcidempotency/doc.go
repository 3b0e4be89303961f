// Package grpcidempotency runs a unary gRPC call once for each idempotency key and answers its
// retries with the reply of the first run.
//
// [UnaryServerInterceptor] is the server's side, on an engine; [UnaryClientInterceptor] gives calls
// their keys. The key is in the metadata idempotency-key.
//
//	protect, err := grpcidempotency.UnaryServerInterceptor(eng, grpcidempotency.Options{Tenant: tenantOf})
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, protect))
//
// The interceptor belongs after authentication, since a replay does not reach the handler. Calls of
// gRPC's own services, such as health checks, have no keys ([DefaultApplies]).
//
// # Answers
//
//	call                                         answer
//	first with its key                           the handler's reply or status
//	retry after the first run                    the same reply or status, with the header idempotency-replayed: true
//	retry while the first run is in progress     Unavailable with RetryInfo and grpc-retry-pushback-ms, the rest of the lease
//	same key, other method or request            InvalidArgument
//	no key, unless Options.Optional              InvalidArgument
//	empty key, a longer one than MaxKeyBytes, or more than one    InvalidArgument
//	retry of a run whose reply was too large to keep              AlreadyExists, with the header
//	new key of a tenant with Options.MaxKeysPerTenant of them     ResourceExhausted
//	Options.Tenant fails                         its status, or Internal
//	the store fails                              Unavailable with RetryInfo
//
// A replayed reply is equal to the first one, unknown fields included; entries of maps may come in
// another order. Headers and trailers that the handler has set are not kept. A reply above
// Options.MaxReplyBytes reaches the first caller, and its key is done without it.
//
// # Failures
//
// A status that describes an error of the call is its result and is replayed: InvalidArgument,
// NotFound, AlreadyExists, FailedPrecondition and OutOfRange, with their details. Any other status,
// and a panic, is a failure and releases the key, so that a retry runs the handler again: it must
// undo what it did. Options.Keep changes this. A status that the handler returns after the context of
// the call has ended is always a failure; OK is always kept.
//
// While the handler runs, its key is leased, and the lease is renewed. If the process dies, the
// lease expires and exactly one retry runs the handler; that is also so if the process dies after
// the handler has returned and before its reply is durable. If a handler loses its lease, after a
// long pause of the process, its context is canceled with the cause [engine.ErrLeaseLost], and its
// answer is Unavailable.
//
// # Requests
//
// Requests are distinguished by their method and their deterministic encoding, which is stable for
// one build of the program only as far as package proto promises. If it changes with an update,
// retries across the update are rejected, and none is run twice.
//
// Streams are not covered: the interceptor is for unary calls, and streaming calls of the server
// are unchanged.
//
// # Versions
//
// The package is a module of its own, so that other packages do not depend on gRPC. In this tree it
// uses the module of the root (replace in go.mod). At a release, that line is removed, the
// corresponding version of github.com/hapax-dev/hapax is required, and the module is then tagged
// integrations/grpcidempotency/vX.Y.Z.
package grpcidempotency
