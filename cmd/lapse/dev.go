package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"lapse/pkg/app"
)

func devCommand(src *app.Source) *cobra.Command {
	return &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, on SQLite, with made-up tokens",
		Long: `Runs producer, consumer and compensator in this process on an SQLite file, without a broker. Database, tokens
and the payment secret are kept in the data directory (--data, by default ` + app.DefaultData + `), so that the next start goes on
where this one ends. Any setting can be changed, for example the time to pay, or ports that are taken:

  lapse dev --set order.timeout.default=20s
  lapse dev --set server.addr=127.0.0.1:8081 --set ops.addr=127.0.0.1:9091`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if src.Data == "" {
				src.Data = app.DefaultData
			}
			if err := app.PrepareData(src.Data); err != nil {
				return err
			}
			live, err := app.Open(*src)
			if err != nil {
				return err
			}
			hooks := app.DevHooks{Serving: func(api, ops string) {
				greet(cmd.OutOrStdout(), live.Config(), src.Data, api, ops)
			}}
			return app.Dev(live, hooks, cmd.ErrOrStderr()).Run(cmd.Context())
		},
	}
}

// greet says where everything is and what to try.
func greet(w io.Writer, c *app.Config, data, api, ops string) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nLapse runs. Data in %s; stop with Ctrl-C.\n\n", data)
	fmt.Fprintf(&b, "  API (HTTP and gRPC)  http://%s   contract: /openapi.yaml\n", api)
	fmt.Fprintf(&b, "  Operations           http://%s   /healthz /readyz /metrics\n\n", ops)
	for _, t := range c.Auth.Tokens {
		fmt.Fprintf(&b, "  Token %-14s %s   (%s)\n", t.Name, t.Token, strings.Join(t.Scopes, ", "))
	}
	for _, s := range c.Payment.Secrets {
		fmt.Fprintf(&b, "  Payment secret       %s\n", s)
	}
	if token, ok := c.TokenFor("order"); ok {
		fmt.Fprintf(&b, `
An order that nobody pays (see it lapse in the log):

  curl -s http://%s/v1/orders -H 'Authorization: Bearer %s' \
    -d '{"user_id":"u1","biz_type":"retail","amount":"1999","currency":"CNY","timeout":"5s"}'

`, api, token)
	}
	_, _ = io.WriteString(w, b.String()) // a terminal that has gone away
}
