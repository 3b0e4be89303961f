package untrusted

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTextIsOneLineThatIsCutBetweenCharacters(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"1234567890123456", "1234567890123456"},
		{"12345678901234567", "1234567890123…"},
		{"123456789012é4567", "123456789012…"}, // the é would end in byte 14
		{"😀😀😀😀😀", "😀😀😀…"},
		{"a\nb\r\x00é", `a\nb\r\x00é`},
		{"a\xffb", `a\xffb`},
		{"a\u2028b\u202ec", `a\u2028b\u202ec`},
		{"1234567890\n\n\n\n", `1234567890\n…`},
		{`a\nb`, `a\nb`},
	} {
		got := Capped(tt.in, 16)
		if got != tt.want || len(got) > 16 || !utf8.ValidString(got) {
			t.Errorf("%q becomes %q, want %q", tt.in, got, tt.want)
		}
		if again := Capped(got, 16); again != got {
			t.Errorf("%q becomes %q, and then %q", tt.in, got, again)
		}
	}
	if got := Text(strings.Repeat("\n", 1<<20)); len(got) > MaxText || len(got) < MaxText-8 {
		t.Errorf("%d bytes", len(got))
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a\nlevel=ERROR fake", "\xff\u202e😀", strings.Repeat("é", MaxText)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if len(got) > MaxText || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b\u2028") || Text(got) != got {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}
