package bench

// A killLog is the endless log, in several partitions, that the processes of a kill run consume.
// The event at each position follows from the seed alone, and a share of them repeats earlier ones:
// of any partition, recent or old.
type killLog struct {
	source
	Parts int
}

const (
	killRepeats = 20 // in a hundred events
	killRecent  = 100
	partShift   = 40
)

// number returns which event is at a position. Events have the number of the position where they
// first appear.
func (l *killLog) number(part int, at uint64) uint64 {
	for {
		here := uint64(part)<<partShift | at
		h := mix(l.Seed ^ mix(here))
		if at == 0 || h%100 >= killRepeats {
			return here
		}
		r := mix(h)
		part = int(r >> 48 % uint64(l.Parts))
		if r&1 == 0 {
			at -= 1 + r>>1%min(at, killRecent)
		} else {
			at = r >> 1 % at
		}
	}
}
