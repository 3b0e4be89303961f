//go:build !synctests

package simulation

// classicTime is real: while a member of the classic protocol joins, the client holds a mutex that
// its commits wait for, and virtual time does not pass then.
var classicTime = realTime
