package cli

import (
	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// rxFlags say how lines are received.
type rxFlags struct {
	backend string
	ring    int64
}

func (f *rxFlags) add(c *cobra.Command) {
	f.ring = mcast.DefaultRingSize
	c.Flags().StringVar(&f.backend, "rx", mcast.Auto.String(), config.RXUsage)
	c.Flags().Var(config.Size{P: &f.ring}, "rx-ring", config.RXRingUsage)
}

func (f *rxFlags) parse() (mcast.Backend, int, error) {
	b, err := mcast.ParseBackend(f.backend)
	if err != nil {
		return b, 0, usagef("--rx %v", err)
	}
	if err := config.CheckRing(f.ring); err != nil {
		return b, 0, usagef("--rx-ring %v", err)
	}
	return b, int(f.ring), nil
}
