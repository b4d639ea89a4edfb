package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// soupPull is a SoupBinTCP client of a few lines, by the specification and
// nothing of ours: `soup ADDR SESSION SEQ FILE` logs in, writes what comes as
// BinaryFILE and prints how it went. A heartbeat ends it. With USER and STATE
// after that, it logs in as USER and writes what comes unsequenced to STATE.
func soupPull(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 && len(args) != 6 {
		ts.Fatalf("usage: soup ADDR SESSION SEQ FILE [USER STATE]")
	}
	user := ""
	if len(args) == 6 {
		user = args[4]
	}
	said, file, state := pullAs(user, args[0], args[1], args[2])
	ts.Check(os.WriteFile(ts.MkAbs(args[3]), file, 0o666))
	if len(args) == 6 {
		ts.Check(os.WriteFile(ts.MkAbs(args[5]), state, 0o666))
	}
	fmt.Fprintln(ts.Stdout(), said)
}

func pullAs(user, addr, session, seq string) (said string, file, state []byte) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err.Error(), nil, nil
	}
	defer conn.Close()
	fmt.Fprintf(conn, "\x00\x2fL%-6s%-10s%-10s%20s", user, "", session, seq)
	n := 0
	for {
		var head [3]byte
		_ = conn.SetReadDeadline(time.Now().Add(hang))
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return said + err.Error(), file, state
		}
		b := make([]byte, int(binary.BigEndian.Uint16(head[:]))-1)
		if _, err := io.ReadFull(conn, b); err != nil {
			return said + err.Error(), file, state
		}
		switch head[2] {
		case 'A':
			said = fmt.Sprintf("accepted %s at %s, ", bytes.TrimSpace(b[:10]), bytes.TrimSpace(b[10:]))
			seq = strings.TrimSpace(string(b[10:]))
		case 'J':
			return "soup: login rejected: " + map[string]string{"A": "not authorised", "S": "session not available"}[string(b)], file, state
		case 'U':
			switch b[0] {
			case 'B':
				said += fmt.Sprintf("snapshot at %d of %d bytes, ", binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]))
			case 'D':
				state = append(state, b[9:]...)
			case 'E':
				said += "whole, "
			case 'N':
				said += "no snapshot, "
			}
		case 'S':
			file = binary.BigEndian.AppendUint16(file, uint16(len(b)))
			file = append(file, b...)
			n++
		case 'Z':
			var first int
			_, _ = fmt.Sscan(seq, &first)
			return fmt.Sprintf("%s%d messages, end at %d", said, n, first+n), file, state
		case 'H':
			return fmt.Sprintf("%s%d messages, waiting", said, n), file, state
		case '+':
			said += fmt.Sprintf("%d messages, %s, ", n, b)
		}
	}
}
