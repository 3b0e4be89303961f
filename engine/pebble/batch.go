package pebble

import "github.com/cockroachdb/pebble/v2"

func put(p *pebble.Batch, space byte, key, value []byte) {
	op := p.SetDeferred(1+len(key), len(value))
	op.Key[0] = space
	copy(op.Key[1:], key)
	copy(op.Value, value)
	must(op.Finish())
}

func remove(p *pebble.Batch, space byte, key []byte) {
	op := p.DeleteDeferred(1 + len(key))
	op.Key[0] = space
	copy(op.Key[1:], key)
	must(op.Finish())
}

// must is for calls that build a batch in memory, which fail only for indexed batches.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
