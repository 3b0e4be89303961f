package redact

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

var secret = []byte("0123456789abcdef0123456789abcdef")

func TestPlainIDsAreOneShortLine(t *testing.T) {
	for _, tt := range []struct{ id, want string }{
		{"order-1", "order-1"},
		{"", ""},
		{"é 1", "é 1"},
		{"a\nlevel=ERROR fake", `"a\nlevel=ERROR fake"`},
		{`"a"`, `"\"a\""`},
		{"\xff\x00", `"\xff\x00"`},
		{"\u202e1", `"\u202e1"`},
		{strings.Repeat("a", MaxBytes), strings.Repeat("a", MaxBytes)},
		{strings.Repeat("a", MaxBytes+1), `"` + strings.Repeat("a", MaxBytes) + `"…`},
		{strings.Repeat("a", MaxBytes-1) + "éé", `"` + strings.Repeat("a", MaxBytes-1) + `"…`},
	} {
		if got := Plain().Text(tt.id); got != tt.want {
			t.Errorf("%.20q of %d bytes is %q, want %q", tt.id, len(tt.id), got, tt.want)
		}
	}
	if got := Plain().Text(strings.Repeat("\xbf\n", 1<<20)); len(got) > 4*MaxBytes+10 || !utf8.ValidString(got) {
		t.Errorf("2 MiB of hostile bytes become %d: %q", len(got), got)
	}
}

func TestHashedIDsNeedALongSecret(t *testing.T) {
	for _, tt := range []struct {
		ids IDs
		ok  bool
	}{{Plain(), true}, {Omitted(), true}, {Hashed(secret), true}, {Hashed(secret[1:]), false}, {Hashed(nil), false}} {
		if err := tt.ids.Check(); (err == nil) != tt.ok {
			t.Errorf("%v: %v", tt.ids.mode, err)
		}
	}
	a, b := Hashed(secret), Hashed(append([]byte("x"), secret...))
	if again := Hashed(secret); a.Text("order-1") != again.Text("order-1") || a.Text("order-1") == a.Text("order-2") || a.Text("order-1") == b.Text("order-1") {
		t.Error("a hash depends on other things than the id and the secret, or not on both")
	}
	if long := a.Text(strings.Repeat("a", 1<<20)); len(long) != 32 || long == a.Text(strings.Repeat("a", MaxBytes)) {
		t.Errorf("the hash of a long id: %s", long)
	}
}

// TestTheSecretIsCopied: the caller may overwrite it.
func TestTheSecretIsCopied(t *testing.T) {
	own := bytes.Clone(secret)
	ids := Hashed(own)
	before := ids.Text("a")
	clear(own)
	if ids.Text("a") != before {
		t.Error("the hash has changed with the caller's slice")
	}
}

func TestOmittedIDsAreNotInTheLog(t *testing.T) {
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("m", Omitted().Attr("id", "order-1"), "n", 1)
	if line := b.String(); strings.Contains(line, "order-1") || strings.Contains(line, "id=") || !strings.Contains(line, "n=1") {
		t.Error(line)
	}
	if got := Omitted().Text("order-1"); got != "(id omitted)" || !Omitted().Omits() || Plain().Omits() {
		t.Error(got)
	}
}

// TestOpensslFindsTheHash runs the command of the documentation of Hashed.
func TestOpensslFindsTheHash(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl command")
	}
	cmd := exec.Command("sh", "-c", `printf %s "$ID" | openssl dgst -sha256 -mac HMAC -macopt hexkey:"$SECRET" | grep -o '[0-9a-f]\{64\}' | cut -c1-32`)
	cmd.Env = append(cmd.Environ(), "ID=order-1", "SECRET="+hex.EncodeToString(secret))
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != Hashed(secret).Text("order-1") {
		t.Errorf("openssl says %q (%v), the log has %q", got, err, Hashed(secret).Text("order-1"))
	}
}
