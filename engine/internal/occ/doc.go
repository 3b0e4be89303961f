// Package occ implements the optimistic concurrency control of transactions: Reservations has the
// claims that open transactions hold, and History detects that a transaction has read what others
// have written since.
package occ
