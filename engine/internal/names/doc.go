// Package names numbers scopes and topics, so that the records of claims and the journal carry numbers,
// and frees the numbers that no retained week uses.
//
// It knows nothing of claims: it gets names and weeks, and returns the writes that record its changes,
// which the committer puts into the batch of the claim.
package names
