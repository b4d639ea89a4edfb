package config

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/moldtape/moldtape/capture"
)

// Bounds of a key of acknowledgements, in bytes.
const (
	leastKey = 16
	mostKey  = 4096
)

// ReadAckKey reads the key in a file: its bytes, but for a line end at the
// end. nil for no file.
func ReadAckKey(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostKey+3))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) < leastKey || len(b) > mostKey {
		return nil, fmt.Errorf("%s: a key of %d bytes; want %d to %d", name, min(len(b), mostKey+1), leastKey, mostKey)
	}
	return b, nil
}

// checkAck checks where acknowledgements go, without looking up a name.
func checkAck(s string) error {
	if err := serverAddr(s); err != nil {
		return err
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil // a name
	}
	return unicast(s, a.Addr())
}

func unicast(s string, a netip.Addr) error {
	if a.IsMulticast() || a.IsUnspecified() {
		return fmt.Errorf("%q: want the unicast host:port of a publisher", s)
	}
	return nil
}

// acks is where c acknowledges.
func (n *Node) acks(c *Channel, i int, key []byte, ps *problems) capture.AckConfig {
	out := capture.AckConfig{Key: key}
	for j, s := range c.Ack {
		a, err := ResolveServer(s)
		if err == nil {
			err = unicast(s, a.Addr())
		}
		if err != nil {
			ps.add(path("channels", i, "ack", j), " %v", err)
			continue
		}
		out.To = append(out.To, a)
	}
	return out
}

// Acknowledges reports whether any channel of n does.
func (n *Node) Acknowledges() bool {
	for i := range n.Channels {
		if len(n.Channels[i].Ack) > 0 {
			return true
		}
	}
	return false
}
