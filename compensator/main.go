// Compensator closes orders whose time-out messages did not come.
package main

import (
	"os"

	"lapse/pkg/app"
)

func main() { os.Exit(app.Main("compensator", app.Compensator)) }
