package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestUsers(t *testing.T) {
	file := fmt.Sprintf("# who may\n\nann:s1:%x\nbob:s2:%X\n", sha256.Sum256([]byte("s1secret")), sha256.Sum256([]byte("s2")))
	u, err := ReadUsers(write(t, file))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, password string
		want           bool
	}{{"ann", "secret", true}, {"ann", "Secret", false}, {"ann", "", false}, {"bob", "", true}, {"", "", false}, {"eve", "secret", false}} {
		if got := u.Allowed(c.user, c.password); got != c.want {
			t.Errorf("%q %q: %v", c.user, c.password, got)
		}
	}
}

func TestFaultyFiles(t *testing.T) {
	hash := strings.Repeat("0", 64)
	for text, want := range map[string]string{
		"":                                   "names no user",
		"ann:" + hash:                        ":1: want USER:SALT:HASH",
		"ann::" + hash:                       ":1: no SALT",
		"# x\nann:s:00":                      ":2: want USER:SALT:HASH",
		"annabel:s:" + hash:                  ":1: user \"annabel\": want 1 to 6",
		"a b:s:" + hash:                      ":1: user and password: want ASCII",
		"bob+:s:" + hash:                     ":1: user \"bob+\": a + at the end",
		"a:s:" + hash + "\na:s:" + hash:      ":2: user \"a\" is there twice",
		"a:s:" + strings.Repeat("x", 70_000): ":1: ",
	} {
		if _, err := ReadUsers(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                    "is empty: want USER:PASSWORD",
		"ann":                 ":1: want USER:PASSWORD",
		"ann:secret\nbob:too": ":2: more than one line",
		"SNAP:secret":         ":1: user \"SNAP\" is not for messages",
		"ann+:secret":         ":1: user \"ann+\": a + at the end",
		"ann:12345678901":     ":1: password of 11 characters",
	} {
		if _, err := (ClientFiles{Login: write(t, text)}).Open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := (ClientFiles{CA: write(t, "no PEM")}).Open(); err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Error(err)
	}
	if _, err := (ClientFiles{Login: t.TempDir()}).Open(); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Error(err)
	}
	if _, err := ServerTLS("cert", ""); err == nil {
		t.Error("a certificate without its key")
	}
}

// A client that knows who vouches for the server connects; another does not.
func TestTLS(t *testing.T) {
	cert, key := pair(t)
	cfg, err := ServerTLS(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.WriteString(conn, "hello"); conn.Close() }()
		}
	}()
	c, err := ClientFiles{Login: write(t, "ann:secret\n"), CA: cert}.Open()
	if err != nil || c.User != "ann" || c.Password != "secret" {
		t.Fatalf("%+v, %v", c, err)
	}
	conn, err := c.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	conn.Close()
	other, _ := pair(t)
	if c, err = (ClientFiles{CA: other}).Open(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Dial(t.Context(), l.Addr().String()); err == nil {
		t.Error("connected to a server that nobody vouches for")
	}
}

// pair makes a certificate for 127.0.0.1 and its key.
func pair(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		write(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
}
