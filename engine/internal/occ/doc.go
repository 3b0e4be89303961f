// Package occ is the optimistic concurrency control of transactions: Reservations are the claims
// that open transactions hold, and History finds which transactions have read what others have
// written since.
package occ
