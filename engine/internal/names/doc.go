// Package names assigns numbers to scopes and topics for use in claim records and in the journal,
// and frees the numbers that no retained week uses.
//
// It does not know claims: it gets names and weeks, and returns the writes for its changes, which
// the committer adds to the batch of the claim.
package names
