package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 4 << 20

// Fault is one thing that is wrong in a file.
type Fault struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // from 1; 0: of the file as a whole
	Column int    `json:"column"` // from 1, in bytes
	Path   string `json:"path"`   // the setting, like channels[2].lines[0]; "" where it is not known
	Text   string `json:"problem"`
}

func (f Fault) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Line, f.Column, f.Text)
}

// Faults is everything that is wrong in a file, in its order.
type Faults []Fault

// Error is one line: the first fault, and how many more there are.
func (fs Faults) Error() string {
	if len(fs) == 0 {
		return "no fault"
	}
	s := fs[0].String()
	if n := len(fs) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more: `moldtape config check %s` prints all)", n, fs[0].File)
	}
	return s
}

// File is a configuration that was read from a file.
type File struct {
	Node Node
	name string
	at   map[string]position
}

type position struct{ line, column int }

// ReadFile reads and checks a file. n has the settings that apply where the
// file says nothing; those whose key is fixed stay, whatever it says. An error
// is Faults, or the system's.
func ReadFile(name string, n Node, fixed func(key string) bool) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	return Parse(name, data, n, fixed)
}

// Parse is ReadFile of what the file holds. The error is Faults.
func Parse(name string, data []byte, n Node, fixed func(key string) bool) (*File, error) {
	d := &decoder{file: &File{Node: n, name: name, at: map[string]position{}}, fixed: fixed}
	if d.fixed == nil {
		d.fixed = func(string) bool { return false }
	}
	d.parse(data)
	if d.unread {
		return nil, d.faults
	}
	if len(d.faults) > 0 {
		// What Validate would say of a half that was understood may be wrong:
		// only that of settings that stand by themselves is told.
		d.file.Node.EnsureDefaults()
		d.faults = append(d.faults, d.file.faults(d.file.Node.Validate(), d.bad)...)
		return nil, ordered(d.faults)
	}
	d.file.Node.EnsureDefaults()
	if ps := d.file.Node.Validate(); len(ps) > 0 {
		return nil, d.file.Faults(ps)
	}
	return d.file, nil
}

// Faults says where in the file ps are.
func (f *File) Faults(ps []Problem) Faults { return ordered(f.faults(ps, nil)) }

func (f *File) faults(ps []Problem, except map[string]bool) (out Faults) {
	for _, p := range ps {
		path, at := f.find(p.Path)
		if except[path] {
			continue
		}
		out = append(out, Fault{File: f.name, Line: at.line, Column: at.column, Path: path, Text: p.InFile()})
	}
	return out
}

// find is the setting that decides path, and where it is: itself, or what a
// channel takes from the defaults, or what it is missing in.
func (f *File) find(path string) (string, position) {
	for p := path; p != ""; {
		if at, ok := f.at[p]; ok {
			return p, at
		}
		if rest, ok := strings.CutPrefix(p, "channels["); ok {
			if _, key, ok := strings.Cut(rest, "]."); ok {
				if at, ok := f.at["defaults."+key]; ok {
					return "defaults." + key, at
				}
			}
		}
		p = p[:max(0, strings.LastIndexAny(p, ".["))]
	}
	return path, f.at[""]
}

// ordered sorts by place; what several channels have from the defaults, or by
// an alias, is said once.
func ordered(fs Faults) Faults {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(fs, func(a, b Fault) bool {
		return a.Line == b.Line && a.Column == b.Column && a.Text == b.Text
	})
}

type decoder struct {
	file   *File
	fixed  func(string) bool
	unread bool // it is no YAML, or there is nothing in it
	faults Faults
	bad    map[string]bool // paths that a fault was found at
}

func (d *decoder) fault(at position, path, format string, args ...any) {
	if d.bad == nil {
		d.bad = map[string]bool{}
	}
	d.bad[path] = true
	d.faults = append(d.faults, Fault{File: d.file.name, Line: at.line, Column: at.column, Path: path, Text: fmt.Sprintf(format, args...)})
}

func (d *decoder) parse(data []byte) {
	d.file.at[""] = position{1, 1}
	d.unread = true
	if len(data) > maxFile {
		d.fault(position{}, "", "longer than %d bytes: this is no configuration", maxFile)
		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if err == nil || errors.Is(err, io.EOF) {
		if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
			d.fault(position{1, 1}, "", "empty; want channels: at the least, see `moldtape config example`")
			return
		}
		err = dec.Decode(&second)
		if err == nil {
			d.fault(place(&second), "", "a second document; want one")
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		at, text := position{1, 1}, err.Error()
		var load *yaml.LoadError
		if errors.As(err, &load) {
			at, text = position{max(load.Mark.Line, 1), max(load.Mark.Column, 1)}, load.Message
		}
		d.fault(at, "", "not YAML: %s", strings.ReplaceAll(text, "\n", " "))
		return
	}
	d.unread = false
	d.root(doc.Content[0])
}

func place(n *yaml.Node) position { return position{max(n.Line, 1), max(n.Column, 1)} }

// root takes the whole document: the node's settings, defaults and channels.
func (d *decoder) root(n *yaml.Node) {
	var defaults, channels *yaml.Node
	node := &d.file.Node
	ignored := Default() // what a flag decides is checked all the same
	d.mapping(n, "", node.Fields(), func(key, val *yaml.Node) bool {
		switch key.Value {
		case "defaults":
			defaults = val
			return true
		case "channels":
			channels = val
			d.file.at["channels"] = place(key)
			return true
		}
		if d.fixed(key.Value) {
			for _, f := range ignored.Fields() {
				if f.Key == key.Value {
					d.setting(val, f.Key, f)
					return true
				}
			}
		}
		return false
	})
	common := DefaultChannel()
	common.Name = ""
	if defaults != nil {
		d.mapping(defaults, "defaults", slices.DeleteFunc(common.Fields(), func(f Field) bool {
			return f.Key == "name" || f.Key == "lines" || strings.HasSuffix(f.Key, "_listen")
		}), nil)
	}
	if channels == nil {
		return
	}
	items := d.sequence(channels, "channels", "a list of channels, each with a name and lines")
	node.Channels = nil
	for i, item := range items {
		c := common
		d.mapping(item, path("channels", i), c.Fields(), nil)
		node.Channels = append(node.Channels, c)
	}
}

// mapping takes a YAML mapping of fields; other has the first look at a key.
func (d *decoder) mapping(n *yaml.Node, at string, fields []Field, other func(key, val *yaml.Node) bool) {
	n = resolve(n)
	if at != "" {
		d.file.at[at] = place(n)
	}
	if n.Kind != yaml.MappingNode {
		d.fault(place(n), at, "%s is %s; want settings, like `%s: …`", or(at, "the file"), kind(n), fields[0].Key)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		p := join(at, key.Value)
		if key.Kind != yaml.ScalarNode {
			d.fault(place(key), at, "a key that is %s; want the name of a setting", kind(key))
			continue
		}
		if line, ok := seen[key.Value]; ok {
			d.fault(place(key), p, "%s is given twice, first in line %d", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		if other != nil && other(key, val) {
			continue
		}
		j := slices.IndexFunc(fields, func(f Field) bool { return f.Key == key.Value })
		if j < 0 {
			d.fault(place(key), p, "unknown setting %q%s", key.Value, hint(at, key.Value, fields))
			continue
		}
		d.setting(val, p, fields[j])
	}
}

// setting takes the value of one field.
func (d *decoder) setting(n *yaml.Node, at string, f Field) {
	n = resolve(n)
	d.file.at[at] = place(n)
	l, ok := f.Value.(list)
	if !ok {
		d.scalar(n, at, f)
		return
	}
	l.clear()
	for i, item := range d.sequence(n, at, "a list") {
		d.scalar(item, fmt.Sprintf("%s[%d]", at, i), f)
	}
}

// sequence is the items of a YAML sequence.
func (d *decoder) sequence(n *yaml.Node, at, want string) []*yaml.Node {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		d.fault(place(n), at, "%s is %s; want %s", at, kind(n), want)
		return nil
	}
	return n.Content
}

// scalar takes one value as it is written: names may look like numbers.
func (d *decoder) scalar(n *yaml.Node, at string, f Field) {
	n = resolve(n)
	d.file.at[at] = place(n)
	s := n.Value
	if f.Key == "lines" && n.Kind == yaml.MappingNode {
		var ok bool
		if s, ok = d.line(n, at); !ok {
			return
		}
	} else if n.Kind != yaml.ScalarNode {
		d.fault(place(n), at, "%s is %s; want a single value", f.Key, kind(n))
		return
	} else if n.Tag == "!!null" {
		d.fault(place(n), at, "%s has no value; leave the key out for its default", f.Key)
		return
	}
	if err := f.Value.Set(s); err != nil {
		d.fault(place(n), at, "%s: %v", f.Key, err)
	}
}

// line takes a line that is written as a mapping.
func (d *decoder) line(n *yaml.Node, at string) (string, bool) {
	var group, iface, source string
	before := len(d.faults)
	d.mapping(n, at, []Field{
		{Key: "group", Value: text{&group}},
		{Key: "interface", Value: text{&iface}},
		{Key: "source", Value: text{&source}},
	}, nil)
	if group == "" && len(d.faults) == before {
		d.fault(place(n), at, "a line without group; want group: G:P, and interface and source where needed")
	}
	if len(d.faults) > before {
		return "", false
	}
	s := group
	if iface != "" {
		s += ",interface=" + iface
	}
	if source != "" {
		s += ",source=" + source
	}
	return s, true
}

// resolve follows an alias.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.Tag == "!!null" {
		return "empty"
	}
	// Of a file that is none, that may be all of it.
	return "the single value " + strconv.Quote(clip(n.Value))
}

// clip is text short enough to be quoted in an error.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// hint says what an unknown key may have been meant for.
func hint(at, key string, fields []Field) string {
	var n Node
	var c Channel
	in := func(fields []Field) bool {
		return slices.ContainsFunc(fields, func(f Field) bool { return f.Key == key })
	}
	switch {
	case at == "" && in(c.Fields()):
		return ": it is of a channel; want it under defaults or channels"
	case at == "defaults" && in(c.Fields()):
		return ": each channel has its own; want it under channels"
	case at != "" && in(n.Fields()):
		return ": it is of the node; want it at the top of the file"
	}
	best, least := "", 3
	for _, f := range fields {
		if d := distance(key, f.Key); d < least {
			best, least = f.Key, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; is %q meant?", best)
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Key
	}
	return "; want one of " + strings.Join(names, ", ")
}

// distance is how many letters apart two words are.
func distance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// path is like channels[2].lines[0], of names and numbers in turn.
func path(parts ...any) string {
	var b strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, p)
		}
	}
	return b.String()
}
