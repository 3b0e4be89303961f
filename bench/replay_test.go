package bench

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// replayed replays a log of the given rows.
func replayed(t *testing.T, rows ...string) ReplayReport {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log.csv")
	if err := os.WriteFile(log, []byte("id,time\n"+strings.Join(rows, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Replay(t.Context(), ReplayOptions{Common: Common{Dir: filepath.Join(t.TempDir(), "store")}, Log: log, Scope: "bench", KeepWeeks: 0, Batch: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// refused is a row that can be read but that the engine rejects, one batch later.
var refused = strings.Repeat("x", 1024+1) + "," + at

func TestRejectedRowsAreInTheOrderOfTheirLines(t *testing.T) {
	r := replayed(t, refused, ","+at, "a,"+at, "b,never", refused)
	var lines []int
	for _, row := range r.RejectedRows {
		lines = append(lines, row.Line)
	}
	if want := []int{2, 3, 5, 6}; !slices.Equal(lines, want) || r.Rejected != 4 || r.Records != 5 || r.RejectedRowsLeftOut != 0 {
		t.Errorf("lines %v, want %v; %+v", lines, want, r)
	}
	if reason := r.RejectedRows[0].Reason; !strings.Contains(reason, "id") {
		t.Errorf("line 2 was rejected because %q", reason)
	}
}

func TestListOfRejectedRowsEndsAndTheirNumberDoesNot(t *testing.T) {
	rows := slices.Repeat([]string{"b,never"}, MaxRejectedRows+30)
	r := replayed(t, append([]string{refused}, rows...)...)
	if len(r.RejectedRows) != MaxRejectedRows || r.Rejected != MaxRejectedRows+31 || r.Records != r.Rejected || r.RejectedRowsLeftOut != 31 {
		t.Fatalf("%d rows in the list, %d left out, %d in all", len(r.RejectedRows), r.RejectedRowsLeftOut, r.Rejected)
	}
	if first, last := r.RejectedRows[0].Line, r.RejectedRows[MaxRejectedRows-1].Line; first != 2 || last != MaxRejectedRows+1 {
		t.Errorf("the list is of lines %d to %d", first, last)
	}
}
