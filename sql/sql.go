// Package sql holds the schema as numbered migrations, one folder for each kind of database. Only
// `lapse migrate` and `lapse dev` run them; the services compare the version and refuse to start on another.
package sql

import "embed"

// Migrations are the files of mysql/ and sqlite/.
//
//go:embed mysql/*.sql sqlite/*.sql
var Migrations embed.FS
