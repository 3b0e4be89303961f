//go:build synctests

package simulation

// classicTime is virtual: with this build tag the client has mutexes that testing/synctest knows.
var classicTime = virtualTime
