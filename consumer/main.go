// Consumer closes orders when their time-out messages come.
package main

import (
	"os"

	"lapse/pkg/app"
)

func main() { os.Exit(app.Main("consumer", app.Consumer)) }
