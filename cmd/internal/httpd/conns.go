package httpd

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
)

// limited is a listener of which at most max connections are open. Where one
// more comes, the oldest whose request is not being answered makes room: who
// only holds connections open keeps nobody out.
type limited struct {
	net.Listener
	max int

	mu   sync.Mutex
	open []*limitedConn // the oldest first
}

type limitedConn struct {
	net.Conn
	of   *limited
	busy bool // a request is being answered; guarded by of.mu
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if x := l.admit(c); x != nil {
			return x, nil
		}
		c.Close()
	}
}

// admit takes up c; nil where every other is busy.
func (l *limited) admit(c net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.max {
		i := slices.IndexFunc(l.open, func(o *limitedConn) bool { return !o.busy })
		if i < 0 {
			return nil
		}
		l.open[i].Conn.Close()
		l.open = slices.Delete(l.open, i, i+1)
	}
	x := &limitedConn{Conn: c, of: l}
	l.open = append(l.open, x)
	return x
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.of.mu.Lock()
	c.of.open = slices.DeleteFunc(c.of.open, func(o *limitedConn) bool { return o == c })
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *limitedConn) set(busy bool) {
	c.of.mu.Lock()
	c.busy = busy
	c.of.mu.Unlock()
}

type connKey struct{}

// connContext is http.Server.ConnContext: it tells marked whose request it is.
func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// marked is h, each of whose requests has its connection busy.
func marked(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*limitedConn); ok {
			c.set(true)
			defer c.set(false)
		}
		h.ServeHTTP(w, r)
	})
}
