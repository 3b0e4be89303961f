//go:build synctests

package simulation

// classicTime is virtual: with this build tag, the client's mutexes work with testing/synctest.
var classicTime = virtualTime
