package ndjson

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moldtape/moldtape/moldcast"
	"pgregory.net/rapid"
)

func TestForm(t *testing.T) {
	got := string(Append(nil, Message{Seq: 484311999, Time: 1473799831523595000, Heard: 1473799831523595000, Data: []byte{0, 1, 2}}))
	want := `{"seq":484311999,"time":"2016-09-13T20:50:31.523595Z","flags":[],"data":"AAEC"}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	got = string(Append(nil, Message{Seq: 1, Time: 1, Heard: 2, Line: 255, Flags: moldcast.Repaired, More: true}))
	want = `{"seq":1,"time":"1970-01-01T00:00:00.000000001Z","heard":"1970-01-01T00:00:00.000000002Z","line":255,"flags":["repaired","more"],"data":""}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stamp := rapid.OneOf(rapid.Just(moldcast.Stamp(0)), rapid.Map(rapid.Int64Range(-9e18, 9e18), func(n int64) moldcast.Stamp { return moldcast.Stamp(n) }))
		want := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Message {
			m := Message{
				Seq:   moldcast.Seq(rapid.Uint64().Draw(t, "seq")),
				Time:  stamp.Draw(t, "time"),
				Heard: stamp.Draw(t, "heard"),
				Line:  rapid.Uint8().Draw(t, "line"),
				Flags: moldcast.PieceFlags(rapid.Uint8Range(0, 1).Draw(t, "flags")),
				More:  rapid.Bool().Draw(t, "more"),
				Data:  rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
			}
			if m.Data == nil {
				m.Data = []byte{}
			}
			return m
		}), 0, 20).Draw(t, "messages")
		var b []byte
		for _, m := range want {
			b = Append(b, m)
		}
		r := NewReader(bytes.NewReader(b))
		for _, w := range want {
			got, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(w, got); d != "" {
				t.Fatal(d)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Fatal(err)
		}
	})
}

func TestFaults(t *testing.T) {
	good := `{"seq":1,"time":null,"flags":[],"data":"AA=="}` + "\n"
	for _, c := range []struct {
		name, in string
		want     error
		pos      int64
	}{
		{"cut", good + `{"seq":2,"ti`, ErrCut, 47},
		{"no data", good + "\n" + `{"seq":2}` + "\n", ErrNoData, 48},
		{"long", good + strings.Repeat("x", MaxLine+1), ErrLineTooLong, 47},
		{"time zero", good + `{"seq":2,"time":"1970-01-01T01:00:00+01:00","data":""}` + "\n", ErrTimeZero, 47},
		{"time", good + `{"seq":2,"time":"0001-01-01T00:00:00Z","data":""}` + "\n", ErrTime, 47},
		{"flag", good + `{"seq":2,"flags":["new"],"data":""}` + "\n", nil, 47},
		{"text", good + "seq 2\n", nil, 47},
		{"heard", good + `{"seq":2,"heard":"now","data":""}` + "\n", nil, 47},
	} {
		r := NewReader(strings.NewReader(c.in))
		if _, err := r.Next(); err != nil {
			t.Errorf("%s: first line: %v", c.name, err)
		}
		_, err := r.Next()
		var bad *LineError
		if !errors.As(err, &bad) || bad.Pos != c.pos || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v at byte %d", c.name, err, c.want, c.pos)
		}
		if _, again := r.Next(); again != err {
			t.Errorf("%s: the fault does not stay: %v", c.name, again)
		}
	}
	// What other programs write: no flags, other order, the last line open.
	r := NewReader(strings.NewReader(` {"data":"AQ==", "seq":5, "extra":1}`))
	if m, err := r.Next(); err != nil || m.Seq != 5 || len(m.Data) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(Append(nil, Message{Seq: 1, Time: 5, Heard: 6, Line: 2, Flags: moldcast.Repaired, More: true, Data: []byte("x")}))
	f.Add([]byte("{}\n{\"seq\":-1}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			m, err := r.Next()
			if bad := (*LineError)(nil); err != nil {
				if err != io.EOF && (!errors.As(err, &bad) || bad.Pos < 0 || bad.Pos >= int64(len(b))) {
					t.Fatalf("%v of %d bytes", err, len(b))
				}
				return
			}
			again, err := NewReader(bytes.NewReader(Append(nil, m))).Next()
			if err != nil || !cmp.Equal(m, again) {
				t.Fatalf("%+v became %+v, %v", m, again, err)
			}
		}
	})
}

// What the fast way reads, the general way reads the same.
func FuzzFast(f *testing.F) {
	f.Add(bytes.TrimSpace(Append(nil, Message{Seq: 1, Time: 5, Heard: 6, Line: 2, Flags: moldcast.Repaired, More: true, Data: []byte("x")})))
	f.Add([]byte(`{"seq":0,"time":null,"heard":"2016-09-13T20:50:31.5Z","flags":["more"],"data":""}`))
	f.Add([]byte(`{"seq":1,"time":"1970-01-01T00:00:00Z","flags":[],"data":""}`))
	f.Add([]byte(`{"seq":07,"time":null,"flags":[],"data":"AA=="}`))
	f.Add([]byte("{\"seq\":7,\"time\":null,\"flags\":[],\"data\":\"AA\r\n==\"}"))
	f.Add([]byte("{\"seq\":7,\"time\":null,\"flags\":[],\"data\":\"AA==\n\"}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := fast(b)
		if !ok {
			return
		}
		if want, err := parse(b); err != nil || !cmp.Equal(got, want) {
			t.Fatalf("%+v, want %+v, %v", got, want, err)
		}
	})
}

// Every line that was written is read the fast way.
func TestFastReadsWhatIsWritten(t *testing.T) {
	for _, m := range []Message{
		{Seq: 1, Data: []byte{}},
		{Seq: 484311999, Time: 1473799831523595000, Heard: 1473799831523595000, Data: []byte("abc")},
		{Seq: 1 << 60, Time: 1, Heard: 2, Line: 255, Flags: moldcast.Repaired, More: true, Data: []byte("a")},
		{Seq: 2, Time: 1, Heard: 1, More: true, Data: []byte("ab")},
	} {
		if got, ok := fast(bytes.TrimSpace(Append(nil, m))); !ok || !cmp.Equal(got, m) {
			t.Errorf("%+v, %v, want %+v", got, ok, m)
		}
	}
}
