package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-dev/hapax/engine"
	"github.com/hapax-dev/hapax/engine/bolt"
	"github.com/hapax-dev/hapax/engine/pebble"
	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/kafkaadapter/identify"
	"github.com/hapax-dev/hapax/weekbucket"
)

// command is the built command.
var command string

// TestMain builds the command.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hapax-test-")
	if err != nil {
		panic(err)
	}
	command = filepath.Join(dir, "hapax.exe")
	code := 1
	if out, err := exec.Command("go", "build", "-o", command, ".").CombinedOutput(); err != nil {
		_, _ = os.Stderr.Write(out)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// An outcome is how a run of the command ended.
type outcome struct {
	t              *testing.T
	args           []string
	code           int
	stdout, stderr string
}

func hapax(t *testing.T, args ...string) outcome {
	t.Helper()
	cmd := exec.Command(command, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if strings.Contains(stderr.String(), "goroutine ") {
		t.Fatalf("%q: %s", args, stderr.String())
	}
	return outcome{t, args, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ends checks the exit status, and that errors are on stderr.
func (o outcome) ends(code int, stderr string) outcome {
	o.t.Helper()
	if o.code != code || !strings.Contains(o.stderr, stderr) || (code == 0) != (o.stderr == "") {
		o.t.Errorf("%q: status %d with %q, want %d with %q", o.args, o.code, o.stderr, code, stderr)
	}
	return o
}

// prints checks that a JSON document was printed: what v is in JSON.
func (o outcome) prints(v any) {
	o.t.Helper()
	var got, want any
	if err := json.Unmarshal([]byte(o.stdout), &got); err != nil {
		o.t.Fatalf("%q: %v in %q", o.args, err, o.stdout)
	}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &want)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		o.t.Errorf("%q printed\n%s\nwant\n%s", o.args, o.stdout, b)
	}
}

// A rig is a store that an application has filled.
type rig struct {
	t        *testing.T
	dir      string
	open     func(dir string) (storage.Store, error)
	kind     string
	now      time.Time
	week     weekbucket.Week // of now
	hostile  string
	oldest   weekbucket.Week
	offsets  map[engine.OffsetKey]engine.Offset
	identity storage.Identity
}

var ctx = context.Background()

// inBoth runs a test with a filled store of either kind: claims of two scopes in three weeks, offsets of two
// groups, a hold and messages.
func inBoth(t *testing.T, test func(t *testing.T, r *rig)) {
	for kind, open := range map[string]func(dir string) (storage.Store, error){
		"pebble": func(dir string) (storage.Store, error) { return pebble.Open(dir, pebble.Options{SmallTables: true}) },
		"bolt": func(dir string) (storage.Store, error) {
			return bolt.Open(dir, bolt.Options{MaxFileBytes: 64 << 20})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			r := &rig{t: t, dir: filepath.Join(t.TempDir(), "store"), open: open, kind: kind, hostile: "\x1b]0;\xff<script>\n"}
			r.now = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
			r.week, _ = weekbucket.Of(r.now)
			r.with(r.fill)
			test(t, r)
		})
	}
}

// with calls fn with an engine of the application.
func (r *rig) with(fn func(e *engine.Engine)) {
	r.t.Helper()
	store, err := r.open(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	e, err := engine.Open(store, engine.Options{Clock: func() time.Time { return r.now }, ExpectedPerWeek: 1000, Nightly: engine.Nightly{Off: true}})
	if err != nil {
		r.t.Fatal(err)
	}
	fn(e)
	if err := e.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// reader calls fn with a reader of the same store.
func (r *rig) reader(fn func(r *engine.Reader)) {
	r.t.Helper()
	f := files{dir: r.dir}
	if err := f.read(func(e *engine.Reader) error { fn(e); return nil }); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) event(scope, id string, weeks int, offset int64) engine.Event {
	return engine.Event{Scope: scope, ID: []byte(id), Time: r.now.AddDate(0, 0, 7*weeks), Origin: engine.Origin{Topic: "orders", Partition: 2, Offset: offset}}
}

func (r *rig) fill(e *engine.Engine) {
	for week := -2; week <= 0; week++ {
		for i := range 5 {
			for _, scope := range []string{"billing", "mail"} {
				r.claim(e, r.event(scope, fmt.Sprint("id-", i), week, int64(10*week+i+100)), engine.Claimed)
			}
		}
	}
	r.claim(e, r.event("billing", r.hostile, 0, 7), engine.Claimed)
	r.offsets = map[engine.OffsetKey]engine.Offset{
		{Group: "g", Topic: "orders", Partition: 1}: {Next: 12, LeaderEpoch: 3, TopicID: [16]byte{0xAB, 1}},
		{Group: "h", Topic: "orders", Partition: 1}: {Next: 4},
	}
	err := e.Update(ctx, func(tx *engine.Tx) error {
		var errs []error
		for p, o := range r.offsets {
			errs = append(errs, tx.SetOffset(p, o))
		}
		_, err := tx.Produce(engine.Message{ID: "m", Topic: "out", Key: []byte(r.hostile), Value: []byte("12345")})
		_, later := tx.Produce(engine.Message{ID: "later", Topic: "out", Due: r.now.Add(time.Hour)})
		return errors.Join(append(errs, err, later)...)
	})
	if err := errors.Join(err, e.SetHold(ctx, "hold", r.now)); err != nil {
		r.t.Fatal(err)
	}
	r.oldest, r.identity = e.Retention().OldestWeek(), e.Identity()
}

func (r *rig) claim(e *engine.Engine, ev engine.Event, want engine.Verdict) {
	r.t.Helper()
	if res, err := e.TryClaim(ctx, ev); res.Verdict != want || err != nil {
		r.t.Fatalf("%q: %v, %v, want %v", ev.ID, res.Verdict, err, want)
	}
}

// run runs a command on the store.
func (r *rig) run(args ...string) outcome {
	r.t.Helper()
	return hapax(r.t, append([]string{"--store", r.dir, "-o", "json"}, args...)...)
}

// row is the claim of an event, as the engine has it.
func (r *rig) row(e *engine.Reader, scope, id string, week weekbucket.Week) claimRow {
	r.t.Helper()
	rec, found, err := e.Lookup(ctx, scope, []byte(id), week.Start())
	if !found || err != nil {
		r.t.Fatalf("%s %q: %v, %v", scope, id, found, err)
	}
	return newClaimRow([]byte(id), week, &rec)
}

func TestQuestions(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		r.reader(func(e *engine.Reader) {
			one := r.row(e, "billing", "id-3", r.week-1)
			all := []claimRow{r.row(e, "billing", "id-3", r.week), one, r.row(e, "billing", "id-3", r.week-2)}
			r.run("lookup", "id-3", "--scope", "billing", "--time", r.now.AddDate(0, 0, -7).Format(time.RFC3339)).ends(0, "").prints([]claimRow{one})
			r.run("lookup", "id-3", "--scope", "billing").ends(0, "").prints(all)
			r.run("lookup", base64.StdEncoding.EncodeToString([]byte(r.hostile)), "--base64", "--scope", "billing").ends(0, "").
				prints([]claimRow{r.row(e, "billing", r.hostile, r.week)})
			r.run("lookup", "id-9", "--scope", "billing").ends(exitNotWanted, "no claim was found").prints([]claimRow{})

			var claims []claimRow
			for c, err := range e.Claims(ctx, storage.Bucket{Scope: "billing", Week: r.week}, nil) {
				if err != nil {
					t.Fatal(err)
				}
				claims = append(claims, newClaimRow(c.ID, r.week, &c.Record))
			}
			if len(claims) != 6 {
				t.Fatalf("%d claims", len(claims))
			}
			r.run("claims", "--scope", "billing", "--week", r.week.String()).ends(0, "").prints(claims)
			r.run("claims", "--scope", "billing", "--week", r.week.String(), "--after", string(claims[2].ID), "--limit", "2").ends(0, "").prints(claims[3:5])

			weeks, err := e.Weeks(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var counts []weekRow
			for _, w := range weeks {
				for _, s := range w.Scopes {
					counts = append(counts, weekRow{w.Week.String(), s.Scope, s.Claims, s.Bytes})
				}
			}
			if len(counts) != 6 || counts[4].Claims != 6 {
				t.Fatalf("counts %v", counts)
			}
			r.run("weeks").ends(0, "").prints(counts)
			names := []string{(r.week - 2).String(), (r.week - 1).String(), r.week.String()}
			r.run("scopes").ends(0, "").prints([]scopeRow{{"billing", r.oldest.String(), names}, {"mail", r.oldest.String(), names}})
			r.run("holds").ends(0, "").prints([]holdRow{{"hold", r.now}})
			offsets := []offsetRow{{"g", "orders", 1, 12, 3, "ab01" + strings.Repeat("0", 28)}, {"h", "orders", 1, 4, 0, ""}}
			r.run("offsets").ends(0, "").prints(offsets)
			r.run("offsets", "--group", "h").ends(0, "").prints(offsets[1:])

			var messages []messageRow
			for m, err := range e.Outbox(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				messages = append(messages, messageRow{m.State, id(m.ID), m.Topic, m.Partition, m.Key, len(m.Value), m.Produced, m.Due, m.Attempts, m.LastError})
			}
			if len(messages) != 2 || messages[0].Bytes != 5 || messages[1].State != "delayed" {
				t.Fatalf("messages %v", messages)
			}
			r.run("outbox", "list").ends(0, "").prints(messages)
			r.run("outbox", "list", "--state", "delayed").ends(0, "").prints(messages[1:])

			u, err := e.Usage()
			if err != nil {
				t.Fatal(err)
			}
			var status statusRow
			if err := json.Unmarshal([]byte(r.run("status").ends(0, "").stdout), &status); err != nil {
				t.Fatal(err)
			}
			uuid := strings.ReplaceAll(status.UUID, "-", "")
			if uuid != fmt.Sprintf("%x", r.identity.UUID) || status.DiskBytes != u.DiskBytes || status.OutboxBytes != e.OutboxBytes() {
				t.Errorf("status %+v, want %v, %v and %d bytes of messages", status, r.identity, u, e.OutboxBytes())
			}
			status.UUID, status.DiskBytes, status.OutboxBytes = "", 0, 0
			want := statusRow{Store: r.dir, Kind: r.kind, Incarnation: 1, OldestWeek: r.oldest.String(), Scopes: 2, Weeks: names, Holds: 1, Offsets: 2, Damaged: []string{}}
			if !reflect.DeepEqual(status, want) {
				t.Errorf("status %+v, want %+v", status, want)
			}
			r.run("verify").ends(0, "").prints(verifyRow{31, 0, []string{}})
		})
	})
}

func TestComposedIDs(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		topicID := [16]byte{0xFB, 0xFF, 1}
		position := identify.PositionID(topicID, 3, 4711)
		for composed, args := range map[string][]string{
			string(identify.CloudEventID([]byte("/s"), []byte("7"))): {"7", "--source", "/s"},
			string(position): {"--position", hex.EncodeToString(topicID[:]) + "/3@4711"},
			string(identify.PositionID(topicID, 3, 4712)):     {"--position=" + base64.RawURLEncoding.EncodeToString(topicID[:]) + "/3@4712"},
			string(identify.WithTopic("orders", []byte("7"))): {"7", "--per-topic", "orders"},
		} {
			args = append(append([]string{"lookup"}, args...), "--scope", "billing")
			r.run(args...).ends(exitNotWanted, "no claim")
			r.with(func(e *engine.Engine) { r.claim(e, r.event("billing", composed, 0, 4711), engine.Claimed) })
			r.reader(func(e *engine.Reader) {
				r.run(args...).ends(0, "").prints([]claimRow{r.row(e, "billing", composed, r.week)})
			})
		}
		for args, text := range map[string]string{
			"--position=x/3@4": "topic id", "--position=00112233445566778899aabbccddeeff/x@4": "partition",
			"--position=00112233445566778899aabbccddeeff/3": "offset", "--source=/s": "give the ID",
		} {
			r.run("lookup", args, "--scope", "billing").ends(exitUsage, text)
		}
		r.run("lookup", "7", "--base64", "--source=/s", "--scope", "billing").ends(exitUsage, "the whole id")
		r.run("lookup", "--position=x/3@4", "--per-topic", "orders", "--scope", "billing").ends(exitUsage, "leave --per-topic out")
	})
}

func TestForms(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		args := []string{"claims", "--scope", "billing", "--week", r.week.String(), "--store", r.dir}
		lines := strings.Split(strings.TrimSuffix(hapax(t, append(args, "-o", "jsonl")...).ends(0, "").stdout, "\n"), "\n")
		if len(lines) != 6 {
			t.Fatalf("lines %q", lines)
		}
		var exact bool
		for _, line := range lines {
			var row struct {
				ID struct{ Text, Base64 string }
			}
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if row.ID.Base64 == base64.StdEncoding.EncodeToString([]byte(r.hostile)) {
				exact = row.ID.Text == strings.ToValidUTF8(r.hostile, "\uFFFD")
			}
		}
		if !exact {
			t.Errorf("no line has the exact id: %q", lines)
		}
		table := hapax(t, args...).ends(0, "").stdout
		if strings.ContainsFunc(table, func(c rune) bool { return c < ' ' && c != '\n' || c == '\uFFFD' }) || !strings.Contains(table, `"\x1b]0;\xff<script>\n"`) {
			t.Errorf("table\n%q", table)
		}
		if !strings.HasPrefix(table, "ID ") || strings.Count(table, "\n") != 7 || !strings.Contains(table, "orders  2 ") {
			t.Errorf("table\n%s", table)
		}
		if status := hapax(t, "status", "--store", r.dir+"/").ends(0, "").stdout; !strings.Contains(status, "oldest week") || !strings.Contains(status, r.oldest.String()) {
			t.Errorf("status\n%s", status)
		}
	})
}

func TestExitStatus(t *testing.T) {
	hapax(t).ends(exitUsage, "expected")
	hapax(t, "status").ends(exitUsage, "--store")
	hapax(t, "--store", "x", "fly").ends(exitUsage, "fly")
	hapax(t, "--store", "x", "status", "-o", "xml").ends(exitUsage, "xml")
	hapax(t, "--store", "x", "claims", "--scope", "s", "--week", "2026-03-04").ends(exitUsage, "Wednesday")
	missing := filepath.Join(t.TempDir(), "store")
	for _, args := range [][]string{{"status"}, {"verify"}, {"drop", "scope", "s", "--yes"}, {"backup", missing + "2"}, {"forget", "a", "--scope", "s", "--week", "2026-03-02", "--yes"}} {
		hapax(t, append([]string{"--store", missing}, args...)...).ends(exitFailed, "there is no store")
	}
	if left, _ := os.ReadDir(filepath.Dir(missing)); len(left) > 0 {
		t.Errorf("%v was made", left)
	}
	inBoth(t, func(t *testing.T, r *rig) {
		r.run("lookup", "", "--scope", "s").ends(exitUsage, "give the ID")
		r.run("lookup", "a b", "--base64", "--scope", "s").ends(exitUsage, "base64")
		r.run("forget", "id-0", "--scope", "s").ends(exitUsage, "--week")
		r.run("drop", "week", (r.week-1).String(), "--yes").ends(exitFailed, "only the oldest retained week")
		r.run("weeks", "--timeout", "1ns").ends(exitIncomplete, "deadline")
		r.with(func(*engine.Engine) {
			for _, args := range [][]string{{"status"}, {"drop", "scope", "mail", "--yes"}, {"restore", r.dir, "--yes"}} {
				r.run(args...).ends(exitFailed, fmt.Sprintf("process %d on ", os.Getpid()))
			}
		})
	})
}

func TestForget(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		args := []string{"forget", "id-3", "--scope", "billing", "--week", r.week.String()}
		want := forgetRow{ID: id("id-3"), Week: r.week.String()}
		r.run(args...).ends(exitNotWanted, "--yes").prints(want)
		r.with(func(e *engine.Engine) { r.claim(e, r.event("billing", "id-3", 0, 1), engine.Duplicate) })
		want.Forgotten = true
		r.run(append(args, "--yes")...).ends(0, "").prints(want)
		want.Forgotten = false
		r.run(append(args, "--yes")...).ends(exitNotWanted, "no such claim").prints(want)
		r.with(func(e *engine.Engine) {
			r.claim(e, r.event("billing", "id-3", -1, 1), engine.Duplicate)
			r.claim(e, r.event("billing", "id-3", 0, 1), engine.Claimed)
		})
	})
}

func TestDropWeek(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		first := r.week - 2
		args := []string{"drop", "week", first.String()}
		want := dropRow{Weeks: []string{first.String()}, Scopes: []string{"billing", "mail"}, Holds: []string{}, Oldest: r.oldest.String()}
		r.run(args...).ends(exitNotWanted, "--yes").prints(want)
		r.with(func(e *engine.Engine) { r.claim(e, r.event("mail", "id-0", -2, 1), engine.Duplicate) })
		want.Dropped, want.Oldest = true, (first + 1).String()
		r.run(append(args, "--yes")...).ends(0, "").prints(want)
		r.with(func(e *engine.Engine) {
			r.claim(e, r.event("mail", "id-0", -2, 1), engine.TooOld)
			r.claim(e, r.event("mail", "id-0", -1, 1), engine.Duplicate)
		})
		r.run("drop", "week", (first+1).String(), "--yes").ends(0, "")
		r.run("drop", "week", r.week.String(), "--yes").ends(exitFailed, "hold") // it is held
	})
}

func TestDropScope(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		args := []string{"drop", "scope", "mail", "--hold", "hold"}
		weeks := []string{(r.week - 2).String(), (r.week - 1).String(), r.week.String()}
		want := dropRow{Weeks: weeks, Scopes: []string{"mail"}, Holds: []string{"hold"}, Oldest: r.oldest.String()}
		r.run(args...).ends(exitNotWanted, "--yes").prints(want)
		r.with(func(e *engine.Engine) { r.claim(e, r.event("mail", "id-0", 0, 1), engine.Duplicate) })
		want.Dropped, want.Oldest = true, (r.week + 1).String()
		r.run(append(args, "--yes")...).ends(0, "").prints(want)
		r.with(func(e *engine.Engine) {
			r.claim(e, r.event("mail", "id-0", 0, 1), engine.TooOld)
			r.claim(e, r.event("billing", "id-0", 0, 1), engine.Duplicate)
			if len(e.Holds()) > 0 {
				t.Errorf("holds %v", e.Holds())
			}
		})
	})
}

func TestDropGroup(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		want := dropRow{Weeks: []string{}, Scopes: []string{}, Holds: []string{}, Offsets: 1, Oldest: r.oldest.String()}
		r.run("drop", "group", "g").ends(exitNotWanted, "--yes").prints(want)
		want.Dropped = true
		r.run("drop", "group", "g", "--yes").ends(0, "").prints(want)
		r.with(func(e *engine.Engine) {
			offsets, err := e.Admin().Offsets(ctx, "")
			if len(offsets) != 1 || err != nil {
				t.Errorf("offsets %v, %v", offsets, err)
			}
		})
	})
}

func TestBackupAndRestore(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		backup := filepath.Join(filepath.Dir(r.dir), "backup")
		var made backupRow
		if err := json.Unmarshal([]byte(r.run("backup", backup).ends(0, "").stdout), &made); err != nil || made.Backup != backup || made.Incarnation <= 1 {
			t.Fatalf("backup %+v, %v", made, err)
		}
		r.run("backup", backup).ends(exitFailed, "exists")
		r.with(func(e *engine.Engine) { r.claim(e, r.event("billing", "later", 0, 1), engine.Claimed) })
		r.run("restore", backup).ends(exitNotWanted, "--yes")
		r.with(func(e *engine.Engine) { r.claim(e, r.event("billing", "later", 0, 1), engine.Duplicate) })
		var done restoreRow
		if err := json.Unmarshal([]byte(r.run("restore", backup, "--yes").ends(0, "").stdout), &done); err != nil || !done.Restored {
			t.Fatalf("restore %+v, %v", done, err)
		}
		r.with(func(e *engine.Engine) {
			r.claim(e, r.event("billing", "id-0", 0, 1), engine.Duplicate)
			r.claim(e, r.event("billing", "later", 0, 1), engine.Claimed)
			if e.Identity().Incarnation != made.Incarnation {
				t.Errorf("incarnation %d, want %d", e.Identity().Incarnation, made.Incarnation)
			}
		})
		replaced := *r
		replaced.dir = done.Replaced
		replaced.with(func(e *engine.Engine) { r.claim(e, r.event("billing", "later", 0, 1), engine.Duplicate) })
		fresh := *r
		fresh.dir = filepath.Join(t.TempDir(), "store")
		fresh.run("restore", backup, "--yes").ends(0, "")
		fresh.with(func(e *engine.Engine) { r.claim(e, r.event("billing", "id-0", 0, 1), engine.Duplicate) })
		entries, _ := os.ReadDir(filepath.Dir(r.dir))
		if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".restoring") }) {
			t.Errorf("left %v", entries)
		}
		fresh.run("restore", filepath.Join(t.TempDir(), "none"), "--yes").ends(exitFailed, "there is no store")
	})
}

func TestDamageIsNamed(t *testing.T) {
	inBoth(t, func(t *testing.T, r *rig) {
		paths, err := filepath.Glob(filepath.Join(r.dir, map[string]string{"pebble": "*.sst", "bolt": "claims.bolt"}[r.kind]))
		if err != nil {
			t.Fatal(err)
		}
		flips := 0
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			i := bytes.Index(b, []byte("id-")) // of a claim
			if i < 0 || r.kind == "pebble" && bytes.Contains(b, []byte("outbox")) {
				continue // a table without claims, or with state
			}
			b[i] ^= 0x40
			flips++
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if flips == 0 {
			t.Fatal("no claim was found in the files")
		}
		o := r.run("verify").ends(exitNotWanted, "damaged")
		var v verifyRow
		if err := json.Unmarshal([]byte(o.stdout), &v); err != nil || v.Problems == 0 || len(v.First) == 0 {
			t.Errorf("verify %+v, %v", v, err)
		}
		if r.kind == "pebble" { // the damage of a bbolt file is not confined
			o := r.run("weeks").ends(exitIncomplete, ".sst")
			if !strings.HasSuffix(o.stdout, "]\n") {
				t.Errorf("weeks %q", o.stdout)
			}
		}
	})
}
