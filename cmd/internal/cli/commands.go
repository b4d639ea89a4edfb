package cli

import "github.com/spf13/cobra"

// commands is every command of moldtape, in the order of help.
var commands = []func(*env) *cobra.Command{
	newDemoCmd,
	newBenchCmd,
	newPublishCmd,
	newListenCmd,
	newCaptureCmd,
	newConfigCmd,
	newStatusCmd,
	newRetransmitCmd,
	newReplayCmd,
	newImportCmd,
	newExportCmd,
	newSessionsCmd,
	newShowCmd,
	newPeaksCmd,
	newVerifyCmd,
	newRepairCmd,
	newPruneCmd,
	newHoldCmd,
	newReleaseCmd,
	newAuditCmd,
	newSnapshotCmd,
}
