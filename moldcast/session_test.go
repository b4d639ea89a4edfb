package moldcast

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSessionText(t *testing.T) {
	for _, tc := range []struct{ text, wire string }{
		{"000010059B", "000010059B"},
		{"1567326030", "1567326030"},
		{"A", "A         "},
		{"%20", "          "},
		{"A%20B", "A B       "},
		{"%20A", " A        "},
		{"A%00", "A\x00        "},
		{"A%00%00%00%00%00%00%00%00%00", "A\x00\x00\x00\x00\x00\x00\x00\x00\x00"},
		{strings.Repeat("%00", 10), strings.Repeat("\x00", 10)},
		{"100%25", "100%      "},
		{"a%2Fb%40c", "a/b@c     "},
		{"%FF%7F", "\xff\x7f        "},
		{"!\"#$&'()~", "!\"#$&'()~ "},
	} {
		s, err := ParseSession(tc.text)
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		if string(s[:]) != tc.wire {
			t.Errorf("%q is %q on the wire, want %q", tc.text, s[:], tc.wire)
		}
		if s.String() != tc.text {
			t.Errorf("%q prints as %q", tc.text, s.String())
		}
	}
	// Forms that are understood, but not printed.
	for text, want := range map[string]string{
		"A%20%20": "A", "%41": "A", "%2f": "%2F", "%20%20%20%20%20%20%20%20%20%20": "%20",
	} {
		if s, err := ParseSession(text); err != nil || s.String() != want {
			t.Errorf("%q: %v %v, want %s", text, s, err, want)
		}
	}
}

func TestSessionErrors(t *testing.T) {
	for text, why := range map[string]string{
		"":                        "empty",
		"12345678901":             "longer than 10 bytes",
		"1234567890%20":           "longer than 10 bytes",
		strings.Repeat("%00", 11): "longer than 10 bytes",
		"a b":                     `character ' '`,
		"a/b":                     `character '/'`,
		"CH@2":                    `character '@'`,
		"caf\xc3\xa9":             "character",
		"a\x00":                   `character '\x00'`,
		"a%":                      "cut escape",
		"a%4":                     "cut escape",
		"%4G":                     "wrong escape %4G",
		"%G4":                     "wrong escape %G4",
	} {
		_, err := ParseSession(text)
		if !errors.Is(err, ErrSessionName) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %s", text, err, why)
		}
	}
}

func TestSessionJSON(t *testing.T) {
	s := Session{'A', ' ', 'B', 0, 0, 0, 0, 0, 0, 0}
	b, err := json.Marshal(map[Session]Session{s: s})
	if err != nil || string(b) != `{"A%20B%00%00%00%00%00%00%00":"A%20B%00%00%00%00%00%00%00"}` {
		t.Fatalf("%s %v", b, err)
	}
	var back map[Session]Session
	if err := json.Unmarshal(b, &back); err != nil || back[s] != s {
		t.Fatalf("%v %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"":""}`), &back); !errors.Is(err, ErrSessionName) {
		t.Fatal(err)
	}
}

// TestSessionRoundTrip: every ten bytes have one printed form, safe as a file
// name, which gives them back.
func TestSessionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSession(t)
		for i := rapid.IntRange(0, 10).Draw(t, "pad"); i < 10; i++ {
			s[i] = ' '
		}
		text := s.String()
		back, err := ParseSession(text)
		if err != nil || back != s {
			t.Fatalf("%q: %q %v, want %q", text, back[:], err, s[:])
		}
		for _, c := range text {
			if c <= ' ' || c > '~' || c == '/' || c == '@' {
				t.Fatalf("%q is not safe", text)
			}
		}
	})
}

func FuzzParseSession(f *testing.F) {
	for _, s := range []string{"", "000010059B", "%20", "A%00", "a%2Fb", "%", "%zz", "12345678901", "caf\u00e9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSession(text)
		if err != nil {
			if !errors.Is(err, ErrSessionName) || s != (Session{}) {
				t.Fatalf("%q: %v %v", text, s, err)
			}
			return
		}
		back, err := ParseSession(s.String())
		if err != nil || back != s {
			t.Fatalf("%q prints as %q, which is %q %v", text, s.String(), back[:], err)
		}
	})
}
