package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/moldtape/moldtape/cmd/internal/config"
)

func newConfigCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:     "config",
		Short:   "Check the configuration file of a capture node, or print an example",
		Example: "  moldtape config example > node.yaml && moldtape config check node.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("config: unknown command %q; want check or example", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Say everything that is wrong in a file, or what it comes to",
		Long: `Read a configuration file as capture --config does, without opening a socket or
resolving a name. Every fault is told on stderr as FILE:LINE:COLUMN: what is wrong
and what is accepted; exit 2. Without one, a summary; with --json, all settings
with their defaults.`,
		Example: "  moldtape config check node.yaml --json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("config check: want one FILE; see `moldtape config check --help`")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return e.configCheck(args[0]) },
	}
	e.addJSON(check, "one JSON document on stdout: the effective configuration, or the faults")
	example := &cobra.Command{
		Use:     "example",
		Short:   "Print an example of a configuration file",
		Example: "  moldtape config example > node.yaml",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := e.stdout.Write(config.Example)
			return err
		},
	}
	c.AddCommand(check, example)
	return c
}

func (e *env) configCheck(name string) error {
	file, err := config.ReadFile(name, config.Default(), nil)
	var faults config.Faults
	switch {
	case errors.As(err, &faults):
		if e.json {
			if perr := e.printJSON(struct {
				OK     bool          `json:"ok"`
				Faults config.Faults `json:"faults"`
			}{Faults: faults}); perr != nil {
				return perr
			}
		}
		for _, f := range faults {
			fmt.Fprintln(e.stderr, f)
		}
		return &exitError{code: exitUsage}
	case err != nil:
		return usagef("config check: %w", err)
	}
	if e.json {
		return e.printJSON(struct {
			OK     bool           `json:"ok"`
			Config json.Marshaler `json:"config"`
		}{true, file.Node})
	}
	n := &file.Node
	t := table(e.stdout)
	row(t, "CHANNEL", "LINES", "SESSIONS", "REREQUEST", "RECOVERY", "RETRANSMIT")
	for i := range n.Channels {
		c := &n.Channels[i]
		row(t, c.Name, listed(c.Lines, "none"), listed(c.Sessions, "all"), listed(c.Rerequest, "none"), listed(c.Recovery, "none"), listed([]string{c.RetransmitListen}, "-"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(e.stderr, "%s: %s, no fault\n", name, count(len(n.Channels), "channel"))
	return nil
}

// listed is a cell of a table: the first of a list and how many more.
func listed(list []string, none string) string {
	if len(list) == 0 || list[0] == "" {
		return none
	}
	if len(list) > 1 {
		return fmt.Sprintf("%s +%d", list[0], len(list)-1)
	}
	return list[0]
}
