// Package idempotency runs an HTTP request once for each idempotency key and answers its retries
// with the response of the first run.
//
// It follows the Internet-Draft "The Idempotency-Key HTTP Header Field"
// (draft-ietf-httpapi-idempotency-key-header-07). [New] makes the server's middleware, on an
// engine; [Transport] is the client's side.
//
//	protect, err := idempotency.New(eng, idempotency.Options{Tenant: tenantOf})
//	mux.Handle("POST /payments", authenticate(protect(payments)))
//
// Place the middleware inside authentication, because a replay does not reach the handler, and
// outside a middleware that compresses responses.
//
// # Answers
//
// Requests with a method of Options.Methods (POST and PATCH; PUT and DELETE only if they are named)
// need a key. The middleware's own answers are problem documents (RFC 9457), except for replays:
//
//	request                                          answer
//	first with its key                               the handler's response
//	retry after the first run                        the same status, headers and body, with Idempotency-Replayed: true
//	retry while the first run is in progress         after Options.Wait, 409 with Retry-After (section 2.6 of the draft)
//	retry of a run whose response was not kept       409 with Idempotency-Replayed: true and without Retry-After
//	retry by a client that does not accept the content coding    decoded if it is gzip, otherwise 406
//	same key, other method, host, path, query or body      422 (section 2.7)
//	no key, unless Options.Optional                  400 (section 2.7)
//	malformed key, or more than one                  400
//	new key of a tenant with Options.MaxKeysPerTenant of them    429
//	body above Options.MaxRequestBytes               413
//	multipart body that an outer handler parsed      500: call the middleware before it
//	Options.Tenant fails                             500, or the status of its StatusError
//	key and tenant above engine.Options.MaxIDBytes   500
//	the store fails, or the clock is weeks behind    503 with Retry-After
//
// A key is a string of RFC 8941 without parameters (section 2.1 of the draft), such as
// "8e03978e-40d5-43e8"; a bare token is accepted and is the same key. It has 1 to [MaxKeyBytes]
// bytes.
//
// # Responses
//
// The response is held back until it is durable with its key, so that a client that has received a
// response gets the same one again. So the handler's ResponseWriter is neither a Flusher nor a
// Hijacker, and [http.ResponseController] finds no further methods. Trailers are kept and replayed.
// Informational responses (1xx) are not sent. Headers that an outer middleware sets are not kept.
// The handler's headers replace those with the same name, except for Set-Cookie and Vary, to which
// values are added. Headers that carry credentials, such as Set-Cookie, are sent with the first
// response only, unless Options.KeepCredentials names them.
//
// Paths are compared without a slash at the end, because [http.ServeMux] redirects from one form to
// the other. Place middlewares that redirect to another host or path outside this one.
//
// A response above Options.MaxResponseBytes still reaches the client. Before the first byte is
// sent, the key is stored as done, without the response. The rest is sent as the handler writes it.
// Retries get 409 and do not run the handler again.
//
// # Failures
//
// Failures are: a response with a status of 500 or above, or one of 307, 308, 401, 402, 403, 408,
// 409, 425 and 429; a panic; a response that ends before its Content-Length; and a handler that
// returns without a response after [Update] failed. A failure releases the key, so that a retry
// runs the handler again, and the handler must undo what it did. Options.Keep decides otherwise; a
// panic and a missing or short response are then kept as status 500.
//
// A status of 2xx is always kept. Status 499 is never kept. After the context of the request has
// ended, no other status is kept either, and no missing response, because the handler may have
// given up when its client had gone. A handler that then answers with an error must undo what it
// did.
//
// While the handler runs its key is leased (Options.Lease), and the lease is renewed three times in
// that time. Leases and retention follow the clock of the engine: if it jumps ahead by more than
// the lease, a retry can run the handler at the same time, and if it is set back by more than a
// week, keys that were used in between are not recognised. If the process dies, the lease expires
// and exactly one retry runs the handler. This also happens if the process dies after the handler
// has returned and before the result is durable, unless the effects and the result are in one
// transaction (below). If another request takes the key over after a long pause of the process, the
// request's context is canceled with the cause [engine.ErrLeaseLost], the handler's response is
// dropped, and the answer is 409.
//
// # Transactions
//
// A handler whose state is in the engine does its work with [Update]: what it writes, and the key
// with its response, commit in one transaction. A crash leaves both or neither, so the work is done
// once for each key, no matter when the process dies. Effects outside the engine are not covered.
package idempotency
