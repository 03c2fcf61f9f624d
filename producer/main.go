// Producer is the order-side service: it serves the API and sends what its orders give to send.
package main

import (
	"os"

	"lapse/pkg/app"
)

func main() { os.Exit(app.Main("producer", app.Producer)) }
