// Command moldtape records sequenced multicast market data, serves what it
// recorded, and replays it.
package main

import (
	"os"

	"github.com/moldtape/moldtape/cmd/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
