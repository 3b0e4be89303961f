package compat

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/versions"
)

func TestVersionedRowsOfTheGoldenStoresAreRead(t *testing.T) {
	for kind, open := range goldenKinds {
		t.Run(kind, func(t *testing.T) {
			dir := copyOfGolden(t, kind)
			e := openGolden(t, dir, open)
			checkGoldenRows(t, e)
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = openGolden(t, dir, open)
			defer e.Close()
			checkReplacedRows(t, e)
			if report, err := e.Admin().Verify(context.Background()); err != nil || report.Total != 0 {
				t.Error(report, err)
			}
		})
	}
}

// The time of a row, with microseconds, as it was put.
var goldenRowTime = time.Date(2026, 3, 28, 9, 30, 15, 123456e3, time.UTC)

func goldenRow(tenant, key string, version uint64, payload string) versions.Row {
	return versions.Row{Tenant: tenant, Key: []byte(key), Version: version, Time: goldenRowTime.Add(time.Duration(version) * time.Second), Payload: []byte(payload)}
}

func goldenDeletion(tenant, key string, version uint64) versions.Row {
	return versions.Row{Tenant: tenant, Key: []byte(key), Version: version, Deleted: true}
}

// The rows of table users, in the order in which they are put. Three rows remain: carol is deleted,
// and dave is erased up to version 9.
var (
	firstRows = []versions.Row{
		goldenRow("acme", "alice", 1, "first"),
		goldenRow("acme", "alice", 300, "third"),
		goldenRow("acme", "bob\x00", 7, "of two payloads of one version"),
		goldenRow("acme", "carol", 4, "before the deletion"),
		goldenRow("acme", "dave", 3, "to be forgotten"),
	}
	lastRows = []versions.Row{
		goldenRow("acme", "alice", 2, "second, late"),
		goldenRow("acme", "bob\x00", 7, "the other one"),
		goldenDeletion("acme", "carol", 5),
		goldenRow("acme", "carol", 3, "late"),
		goldenRow("acme", "dave", 8, "late"),
		{Tenant: "\x00\xff", Key: []byte("\x00"), Version: 1<<64 - 1},
	}

	newestRows = []string{
		"\x00\xff \x00 18446744073709551615 -  false",
		"acme alice 300 09:35:15.123456 third false",
		"acme bob\x00 7 09:30:22.123456 the other one false",
	}
	storedRows = []string{
		"\x00\xff \x00 18446744073709551615 -  false",
		"acme alice 300 09:35:15.123456 third false",
		"acme alice 2 09:30:17.123456 second, late false",
		"acme alice 1 09:30:16.123456 first false",
		"acme bob\x00 7 09:30:22.123456 the other one false",
		"acme bob\x00 7 09:30:22.123456 of two payloads of one version false",
		"acme carol 5 -  true",
		"acme carol 4 09:30:19.123456 before the deletion false",
		"acme carol 3 09:30:18.123456 late false",
		"acme dave 9 -  true",
		"acme dave 8 09:30:23.123456 late false",
	}
	replacedRows = []string{
		"\x00\xff \x00 18446744073709551615 -  false",
		"acme alice 300 09:35:15.123456 third false",
		"acme bob\x00 7 09:30:22.123456 the other one false",
		"acme bob\x00 7 09:30:22.123456 of two payloads of one version false",
		"acme carol 5 -  true",
		"acme dave 9 -  true",
	}
)

func rowText(r versions.Row) string {
	at := "-"
	if !r.Time.IsZero() {
		at = r.Time.Format("15:04:05.000000")
	}
	return fmt.Sprintf("%s %s %d %s %s %v", r.Tenant, r.Key, r.Version, at, r.Payload, r.Deleted)
}

func usersOf(t *testing.T, e *engine.Engine, o versions.Options) *versions.Table {
	t.Helper()
	if o.Clock == nil {
		o.Clock = func() time.Time { return goldenNow }
	}
	table, err := versions.New(e, "users", o)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// putRows puts rows in one transaction.
func putRows(e *engine.Engine, table *versions.Table, rows ...versions.Row) error {
	return e.Update(context.Background(), func(tx *engine.Tx) (err error) {
		for _, r := range rows {
			err = errors.Join(err, table.In(tx).Put(r))
		}
		return err
	})
}

// wantRows compares the rows of a scan with the expected ones.
func wantRows(t *testing.T, what string, rows versions.Rows, err error, want []string) {
	t.Helper()
	if err != nil {
		t.Fatal(what, err)
	}
	if got := textsOf(t, rows.All); !slices.Equal(got, want) {
		t.Errorf("%s:\n%q\nwant\n%q", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !rows.LastApplied.Equal(goldenNow) {
		t.Errorf("%s: last applied at %v, want %v", what, rows.LastApplied, goldenNow)
	}
}

func textsOf(t *testing.T, all iter.Seq2[versions.Row, error]) (texts []string) {
	t.Helper()
	for r, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, rowText(r))
	}
	return texts
}

// checkGoldenRows reads the rows in each way, and puts late versions.
func checkGoldenRows(t *testing.T, e *engine.Engine) {
	ctx, users := context.Background(), usersOf(t, e, versions.Options{})
	rows, err := users.ScanWithOlderVersions(ctx, versions.Selection{})
	wantRows(t, "all versions", rows, err, storedRows)
	rows, err = users.Scan(ctx, versions.Selection{})
	wantRows(t, "the newest versions", rows, err, newestRows)
	rows, err = users.Scan(ctx, versions.Selection{Tenant: "acme", From: goldenRowTime.Add(300 * time.Second)})
	wantRows(t, "the newest versions by time", rows, err, newestRows[1:2])
	for _, r := range append(slices.Clone(firstRows), lastRows...) {
		a, err := users.Get(ctx, r.Tenant, r.Key)
		text := ""
		if a.Found {
			text = rowText(a.Row)
		}
		i := slices.IndexFunc(newestRows, func(s string) bool { return strings.HasPrefix(s, r.Tenant+" "+string(r.Key)+" ") })
		if err != nil || i < 0 && a.Found || i >= 0 && text != newestRows[i] {
			t.Errorf("%q %q is %q, %v", r.Tenant, r.Key, text, err)
		}
	}
	// A repetition, and versions that the store's older versions hide or lose to.
	late := append(slices.Clone(firstRows), goldenRow("acme", "carol", 1, "later"), goldenRow("acme", "dave", 9, "later"))
	if err := putRows(e, users, late...); err != nil {
		t.Fatal(err)
	}
	rows, err = users.Scan(ctx, versions.Selection{})
	wantRows(t, "after late versions", rows, err, newestRows)
}

// checkReplacedRows removes replaced versions, and then the expired deletion. The erasure remains.
func checkReplacedRows(t *testing.T, e *engine.Engine) {
	ctx := context.Background()
	for _, c := range []struct {
		after time.Duration
		want  []string
	}{
		{time.Hour, replacedRows},
		{25 * time.Hour, append(slices.Clone(replacedRows[:4]), replacedRows[5])},
	} {
		clock := func() time.Time { return goldenNow.Add(c.after) }
		users := usersOf(t, e, versions.Options{KeepDeletions: 24 * time.Hour, Clock: clock})
		if _, err := users.Prune(ctx); err != nil {
			t.Fatal(err)
		}
		rows, err := users.ScanWithOlderVersions(ctx, versions.Selection{})
		wantRows(t, fmt.Sprint("replaced after ", c.after), rows, err, c.want)
		rows, err = users.Scan(ctx, versions.Selection{})
		wantRows(t, fmt.Sprint("newest after ", c.after), rows, err, newestRows)
	}
	users := usersOf(t, e, versions.Options{})
	if err := putRows(e, users, goldenRow("acme", "carol", 1, "back"), goldenRow("acme", "dave", 9, "late"), goldenRow("acme", "dave", 10, "new")); err != nil {
		t.Fatal(err)
	}
	rows, err := users.Scan(ctx, versions.Selection{})
	want := append(slices.Clone(newestRows), "acme carol 1 09:30:16.123456 back false", "acme dave 10 09:30:25.123456 new false")
	wantRows(t, "after newer versions", rows, err, want)
}
