package config

import (
	"time"
)

// Streams is what is told of the recovery streams that are served.
type Streams struct {
	Listen  string
	Readers int // of each address, as all that follows
	Reads   int
	Cache   int64
	Stall   time.Duration
	Users   string // file
	TLSCert string // file, as TLSKey
	TLSKey  string
}

// DefaultStreams serves none.
func DefaultStreams() Streams {
	return Streams{Readers: 1024, Reads: 2, Cache: 32 << 20, Stall: 15 * time.Second}
}

// Bounds of Streams.
const (
	maxReaders = 65536
	maxReads   = 256
	leastCache = 1 << 20
	mostCache  = 16 << 30
	leastStall = time.Second
)

// Fields are the settings of s.
func (s *Streams) Fields() []Field {
	return []Field{
		{"recovery_listen", "recovery-listen", "serve recovery streams (SoupBinTCP) of all that is archived on this TCP `HOST:PORT`", text{&s.Listen}},
		{"recovery_readers", "recovery-readers", "most readers of recovery streams at once, `N`", integer{&s.Readers}},
		{"recovery_reads", "recovery-reads", "how many pieces of history are read from disk for them at once, `N`; the others wait in line", integer{&s.Reads}},
		{"recovery_cache", "recovery-cache", "how much of the streams is kept in memory, ready to be sent to other readers", Size{&s.Cache}},
		{"recovery_stall", "recovery-stall", "a reader that takes nothing for so long is disconnected", Duration{&s.Stall}},
		{"recovery_users", "recovery-users", "only those may log in whom this `FILE` names, in lines USER:SALT:HASH (see the README)", text{&s.Users}},
		{"recovery_tls_cert", "recovery-tls-cert", "serve recovery streams by TLS, with the certificate of this PEM `FILE`", text{&s.TLSCert}},
		{"recovery_tls_key", "recovery-tls-key", "PEM `FILE` of its key", text{&s.TLSKey}},
	}
}

// Validate reports what is wrong with s, the address aside.
func (s *Streams) Validate() []Problem {
	var ps problems
	if s.Readers < 1 || s.Readers > maxReaders {
		ps.add("recovery_readers", " %d: want 1..%d", s.Readers, maxReaders)
	}
	if s.Reads < 1 || s.Reads > maxReads {
		ps.add("recovery_reads", " %d: want 1..%d", s.Reads, maxReads)
	}
	if s.Cache < leastCache || s.Cache > mostCache {
		ps.add("recovery_cache", " %d: want 1MiB to 16GiB", s.Cache)
	}
	if s.Stall < leastStall {
		ps.add("recovery_stall", " %v: want at least 1s", s.Stall)
	}
	if (s.TLSCert == "") != (s.TLSKey == "") {
		ps.add("recovery_tls_cert", " and {recovery_tls_key} go together")
	}
	return ps
}
