package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

// TestFiles runs testdata: `check` gives every fault of a file, or nothing;
// `show` the settings of its node and channels that are not the default's.
func TestFiles(t *testing.T) {
	datadriven.Walk(t, "testdata/files", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			f, err := Parse("f", []byte(d.Input), Default(), nil)
			var faults Faults
			switch {
			case errors.As(err, &faults):
				var b strings.Builder
				for _, x := range faults {
					// The list of all settings is long, and grows.
					said, _, _ := strings.Cut(x.String(), "; want one of archive,")
					said, _, _ = strings.Cut(said, "; want one of name,")
					fmt.Fprintln(&b, said)
				}
				return b.String()
			case err != nil:
				t.Fatal(err)
			case d.Cmd == "check":
				return "ok\n"
			}
			var b strings.Builder
			changed(&b, "", Default().fieldsOf(), f.Node.fieldsOf())
			for i := range f.Node.Channels {
				def := DefaultChannel()
				changed(&b, fmt.Sprintf("channels[%d].", i), def.Fields(), f.Node.Channels[i].Fields())
			}
			return b.String()
		})
	})
}

func (n Node) fieldsOf() []Field { return n.Fields() }

func changed(b *strings.Builder, at string, def, got []Field) {
	for i, f := range got {
		if was, is := def[i].Value.JSON(), f.Value.JSON(); !reflect.DeepEqual(was, is) {
			fmt.Fprintf(b, "%s%s: %v\n", at, f.Key, f.Value)
		}
	}
}

// The example of the README is the embedded one, and has no fault.
func TestExample(t *testing.T) {
	f, err := Parse("example.yaml", Example, Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.Node.Channels); n < 2 {
		t.Errorf("%d channels; want several", n)
	}
	if _, ps := f.Node.Capture(); len(ps) > 0 {
		t.Errorf("not understood: %v", ps)
	}
	readme, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```yaml\n"+string(Example)+"```\n") {
		t.Error("the README does not have the example as it is")
	}
}

// Each field is set by its own value: by Set of its text a copy becomes equal.
func TestFieldsAreDistinct(t *testing.T) {
	sample := func(v Value) string {
		switch v.Type() {
		case "DUR":
			return "7m"
		case "SIZE":
			return "7MiB"
		case "N":
			return "7"
		case "bool":
			return strconv.FormatBool(v.String() != "true")
		}
		return "seven"
	}
	node, channel := Default(), DefaultChannel()
	for i := range node.Fields() {
		got := Default()
		f := got.Fields()[i]
		if err := f.Value.Set(sample(f.Value)); err != nil {
			t.Fatalf("%s: %v", f.Key, err)
		}
		if n := differences(node, got); n != 1 {
			t.Errorf("%s sets %d fields", f.Key, n)
		}
	}
	for i := range channel.Fields() {
		got := DefaultChannel()
		f := got.Fields()[i]
		if err := f.Value.Set(sample(f.Value)); err != nil {
			t.Fatalf("%s: %v", f.Key, err)
		}
		if n := differences(channel, got); n != 1 {
			t.Errorf("%s sets %d fields", f.Key, n)
		}
	}
	// Channels have no key here, and Streams is of several fields.
	if n, want := len(node.Fields())+2-len(node.Streams.Fields()), reflect.TypeOf(node).NumField(); n != want {
		t.Errorf("%d of the %d fields of Node have a key", n, want)
	}
	if n, want := len(node.Streams.Fields()), reflect.TypeOf(node.Streams).NumField(); n != want {
		t.Errorf("%d of the %d fields of Streams have a key", n, want)
	}
	if n, want := len(channel.Fields()), reflect.TypeOf(channel).NumField(); n != want {
		t.Errorf("%d of the %d fields of Channel have a key", n, want)
	}
}

func differences(a, b any) (n int) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			n++
		}
	}
	return n
}

// What a flag has decided is not the file's, which is checked all the same.
func TestFixed(t *testing.T) {
	n := Default()
	n.Sync = time.Second
	fixed := func(key string) bool { return key == "sync" }
	const channels = "\nchannels: [{name: a, lines: ['239.1.1.1:5']}]"
	f, err := Parse("f", []byte("sync: 5ms\nkeep: 5d"+channels), n, fixed)
	if err != nil {
		t.Fatal(err)
	}
	if f.Node.Sync != time.Second || f.Node.Keep != 120*time.Hour {
		t.Errorf("sync %v, keep %v; want those of flag and file", f.Node.Sync, f.Node.Keep)
	}
	if _, err := Parse("f", []byte("sync: soon"+channels), n, fixed); err == nil {
		t.Error("a value that is not used is not checked")
	}
}

// A list of a channel is its own: what channels inherit is never written to.
func TestInheritedLists(t *testing.T) {
	f, err := Parse("f", []byte(`defaults: {sessions: [A, B]}
channels:
  - {name: a, lines: ['239.1.1.1:5']}
  - {name: b, lines: ['239.1.1.1:6'], sessions: [C]}
  - {name: c, lines: ['239.1.1.1:7'], sessions: []}`), Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, c := range f.Node.Channels {
		got = append(got, c.Sessions)
	}
	if d := cmp.Diff([][]string{{"A", "B"}, {"C"}, nil}, got); d != "" {
		t.Error(d)
	}
}

// What Validate accepts, the store does too.
func TestStoreOptions(t *testing.T) {
	for _, set := range []func(*Node){
		func(n *Node) { n.SegmentSize = 16 << 10 }, func(n *Node) { n.Reserve = 1 << 30 }, func(n *Node) { n.QueueBytes = leastQueue },
	} {
		n := Default()
		set(&n)
		n.EnsureDefaults()
		opts := n.StoreOptions()
		if err := opts.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// The bounds of memory of a large node are those of a small one together.
func TestMemory(t *testing.T) {
	n := Default()
	for i := range 64 {
		c := DefaultChannel()
		c.Name = fmt.Sprint("c", i)
		c.Lines = []string{fmt.Sprintf("239.1.1.1:%d", i+1), fmt.Sprintf("239.1.1.2:%d", i+1)}
		c.Rerequest = []string{"127.0.0.1:5"}
		n.Channels = append(n.Channels, c)
	}
	n.EnsureDefaults()
	if ps := n.Validate(); len(ps) > 0 {
		t.Fatal(ps)
	}
	var rings, reorder int64
	for _, c := range n.Channels {
		if rings += 3 * slotBytes * int64(slots(c.RingBytes)); slots(c.RingBytes) < 512 {
			t.Errorf("%d slots of %d bytes", slots(c.RingBytes), c.RingBytes)
		}
		reorder += c.ReorderBytes
	}
	if rings > allRings || reorder > allReorder || n.QueueBytes*64 > allQueues {
		t.Errorf("rings %d, early messages %d, queues %d bytes", rings, reorder, n.QueueBytes*64)
	}
}

// FuzzParse: no file makes it panic, and of one that it takes the effective
// configuration is JSON and can be built from.
func FuzzParse(f *testing.F) {
	f.Add(Example)
	for _, s := range []string{"", "\x00", "a: b\n  c: d", "channels: &x [*x]", "defaults: 5\nchannels: {}", "channels:\n  - ", "<<: {a: 1}", "channels: [{name: a, lines: [{group: '239.1.1.1:5'}]}]", "? [a]\n: b"} {
		f.Add([]byte(s))
	}
	f.Add([]byte("channels: [{name: a, lines: ['239.1.1.1:5'], rerequest: ['127.0.0.1:5,window=9', source], rerequest_port: 7, ack: ['10.0.0.1:5']}]"))
	named := func(s string) bool { // which would be looked up
		addr, _, _ := parseServer(s)
		_, err := netip.ParseAddrPort(addr)
		return err != nil && addr != "source"
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data, Default(), nil)
		var faults Faults
		if err != nil {
			if !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("error %T without a fault", err)
			}
			return
		}
		if b, err := json.Marshal(file.Node); err != nil || !json.Valid(b) {
			t.Fatalf("%s: %v", b, err)
		}
		for _, c := range file.Node.Channels {
			if slices.ContainsFunc(slices.Concat(c.Rerequest, c.Ack), named) {
				return
			}
		}
		cfgs, _ := file.Node.Capture()
		for i := range cfgs {
			cfgs[i].EnsureDefaults()
			if err := cfgs[i].Validate(); err != nil {
				t.Fatalf("valid, but %v", err)
			}
		}
	})
}

// The windows of servers stand in their order, the stream's source last.
func TestWindows(t *testing.T) {
	f, err := Parse("f", []byte(`channels:
  - {name: a, lines: ['239.1.1.1:5'], rerequest: ['127.0.0.1:5,window=1000', 'source,window=50', '127.0.0.1:6'], rerequest_port: 7}`), Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	cfgs, ps := f.Node.Capture()
	if len(ps) > 0 {
		t.Fatal(ps)
	}
	c := cfgs[0]
	if d := cmp.Diff([]uint64{1000, 0, 50}, c.Windows); d != "" || len(c.Rerequest) != 2 || !c.RerequestSource {
		t.Errorf("%s; servers %v", d, c.Rerequest)
	}
}
