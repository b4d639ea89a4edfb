// Package credentials is what either end of a recovery stream is told by files
// of users and passwords, and of TLS.
//
// SoupBinTCP sends user and password as they are: at most 6 and 10 bytes of
// ASCII, without trailing spaces. Only TLS keeps them from who listens.
package credentials

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/moldtape/moldtape/moldcast/soup"
)

// Bounds of the fields of a login, bytes, and of a file.
const (
	MaxUser     = 6
	MaxPassword = 10

	maxFile  = 16 << 20
	maxUsers = 65536
)

// DialTimeout bounds how long a connection may take, its TLS handshake
// included.
const DialTimeout = 5 * time.Second

// ClientFiles is how the streams of peers are dialed, as flags and files say.
type ClientFiles struct {
	Login string // file of one line, USER:PASSWORD; empty: no name
	TLS   bool
	CA    string // file of PEM certificates that vouch for a peer, and no others; implies TLS; empty: those of the system
}

// Client dials recovery streams. It may be used from any goroutine.
type Client struct {
	User, Password string // of a login
	tls            *tls.Config
}

// Open reads the files.
func (f ClientFiles) Open() (*Client, error) {
	c := &Client{}
	if f.Login != "" {
		n := 0
		err := lines(f.Login, func(line string) (err error) {
			if n++; n > 1 {
				return errors.New("more than one line: want USER:PASSWORD")
			}
			user, password, ok := strings.Cut(line, ":")
			if !ok {
				return errors.New("want USER:PASSWORD")
			}
			c.User, c.Password = user, password
			if user == soup.SnapshotUser {
				return fmt.Errorf("user %q is not for messages: it asks for a snapshot", user)
			}
			return checkLogin(user, password)
		})
		switch {
		case err != nil:
			return nil, err
		case n == 0:
			return nil, fmt.Errorf("%s is empty: want USER:PASSWORD", f.Login)
		}
	}
	if f.TLS || f.CA != "" {
		c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if f.CA != "" {
		pem, err := readFile(f.CA)
		if err != nil {
			return nil, err
		}
		c.tls.RootCAs = x509.NewCertPool()
		if !c.tls.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate: want PEM", f.CA)
		}
	}
	return c, nil
}

// Dial connects to the recovery stream at addr, host:port; the host is the name
// that a certificate must be for.
func (c *Client) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: DialTimeout}
	if c.tls == nil {
		return d.DialContext(ctx, "tcp", addr)
	}
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	t := tls.Dialer{NetDialer: &d, Config: c.tls}
	conn, err := t.DialContext(ctx, "tcp", addr)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return conn, err
}

// ServerTLS is what a server of recovery streams needs for TLS; nil where both
// names are empty.
func ServerTLS(cert, key string) (*tls.Config, error) {
	switch {
	case cert == "" && key == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, errors.New("a certificate and its key go together")
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
}

// Users are those who may log in. It may be used from any goroutine.
type Users struct {
	byName map[string]secret
}

type secret struct {
	salt string
	hash [sha256.Size]byte
}

// ReadUsers reads a file of lines USER:SALT:HASH, HASH being the SHA-256 of SALT
// and password, one right behind the other, in hexadecimal. Empty lines and
// those that begin with # say nothing.
func ReadUsers(name string) (*Users, error) {
	u := &Users{byName: map[string]secret{}}
	err := lines(name, func(line string) error {
		user, rest, _ := strings.Cut(line, ":")
		salt, hash, ok := strings.Cut(rest, ":")
		var s secret
		raw, err := hex.DecodeString(hash)
		switch {
		case !ok || err != nil || len(raw) != len(s.hash):
			return errors.New("want USER:SALT:HASH, HASH the 64 hexadecimal digits of the SHA-256 of SALT and password")
		case salt == "":
			return errors.New("no SALT: want USER:SALT:HASH")
		case len(u.byName) == maxUsers:
			return fmt.Errorf("more than %d users", maxUsers)
		}
		if err := checkLogin(user, ""); err != nil {
			return err
		}
		if _, twice := u.byName[user]; twice {
			return fmt.Errorf("user %q is there twice", user)
		}
		s.salt = salt
		copy(s.hash[:], raw)
		u.byName[user] = s
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(u.byName) == 0 {
		return nil, fmt.Errorf("%s names no user: want lines USER:SALT:HASH", name)
	}
	return u, nil
}

// Allowed reports whether the password is the user's. How long it takes does
// not tell whether there is such a user.
func (u *Users) Allowed(user, password string) bool {
	s, known := u.byName[user]
	if !known {
		s.salt = "nobody"
	}
	got := sha256.Sum256([]byte(s.salt + password))
	return subtle.ConstantTimeCompare(got[:], s.hash[:]) == 1 && known
}

// checkLogin reports what no login can carry.
func checkLogin(user, password string) error {
	switch {
	case user == "" || len(user) > MaxUser:
		return fmt.Errorf("user %q: want 1 to %d characters", user, MaxUser)
	case len(password) > MaxPassword:
		return fmt.Errorf("password of %d characters: want at most %d", len(password), MaxPassword)
	}
	if strings.HasSuffix(user, soup.SnapshotMark) {
		return fmt.Errorf("user %q: a %s at the end asks for a snapshot, and is part of no name", user, soup.SnapshotMark)
	}
	for _, b := range []byte(user + password) {
		if b <= ' ' || b > '~' {
			return errors.New("user and password: want ASCII without spaces")
		}
	}
	return nil
}

// lines calls fn with each line of a file that says something; an error says
// where.
func lines(name string, fn func(string) error) error {
	data, err := readFile(name)
	if err != nil {
		return err
	}
	sc := bufio.NewScanner(bytes.NewReader(data))
	n := 0
	for sc.Scan() {
		n++
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := fn(line); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	return nil
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file", name)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return os.ReadFile(name)
}
