package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"lapse/pkg/app"
)

// backfilled is what a backfill did, as JSON.
type backfilled struct {
	Seen      int `json:"seen"`
	Scheduled int `json:"scheduled"`
}

func backfillCommand(src *app.Source) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Schedule what the owner of adopted items has open already",
		Long: `Asks the configured hook for all items that are open, however far their deadlines are, and schedules those that are not
scheduled yet in the configured database. Deadlines that are known stay as they are. It may be repeated, also while everything
runs: an item that ends meanwhile costs one call of the hook, which says final.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := app.Load(*src)
			if err != nil {
				return err
			}
			seen, scheduled, err := app.Backfill(cmd.Context(), c)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), backfilled{seen, scheduled})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d items are open, %d of them were not scheduled yet and are now\n", seen, scheduled)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
