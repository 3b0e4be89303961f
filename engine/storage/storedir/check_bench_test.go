package storedir

import "testing"

func BenchmarkCheck(b *testing.B) {
	d, err := Open(b.TempDir() + "/store")
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	if err := d.Lock(0); err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"HAPAX", "log", "MANIFEST"} {
		f, err := d.Create(name)
		if err != nil {
			b.Fatal(err)
		}
		_ = f.Close()
		if err := d.Track(name); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if err := d.Check(); err != nil {
			b.Fatal(err)
		}
	}
}
