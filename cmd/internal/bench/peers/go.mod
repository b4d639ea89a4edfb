module github.com/moldtape/moldtape/cmd/internal/bench/peers

go 1.26.0

require (
	github.com/moldtape/moldtape v0.0.0
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.50.0
)

replace github.com/moldtape/moldtape => ../../../..
