package config

import (
	"bytes"
	_ "embed"
	"encoding/json"
)

// Example is a whole file, with every kind of setting.
//
//go:embed example.yaml
var Example []byte

// MarshalJSON is the effective configuration: the keys of the file, with the
// defaults; durations in seconds, sizes in bytes, null for what is not set.
func (n Node) MarshalJSON() ([]byte, error) {
	channels := make([]json.RawMessage, 0, len(n.Channels))
	for i := range n.Channels {
		b, err := object(n.Channels[i].Fields())
		if err != nil {
			return nil, err
		}
		channels = append(channels, b)
	}
	list, err := json.Marshal(channels)
	if err != nil {
		return nil, err
	}
	b, err := object(n.Fields())
	if err != nil {
		return nil, err
	}
	b = append(b[:len(b)-1], `,"channels":`...)
	return append(append(b, list...), '}'), nil
}

// object is a JSON object of fields, in their order.
func object(fields []Field) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		v, err := json.Marshal(f.Value.JSON())
		if err != nil {
			return nil, err
		}
		b.WriteString(`"` + f.Key + `":`)
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
