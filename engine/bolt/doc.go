// Package bolt is the engine.Store for small devices: one bbolt file, up to about 10 million claims.
package bolt
