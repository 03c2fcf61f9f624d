// Package sql holds the schema as numbered migrations, one folder for each kind of database. Only
// `lapse migrate` and `lapse dev` run them; the services refuse to start on an older version, and on one that they are too
// old for (t_counter schema_floor). A migration only adds, so that the version before goes on working; what it leaves
// behind is removed, and the floor raised, one version later.
package sql

import "embed"

// Migrations are the files of mysql/ and sqlite/.
//
//go:embed mysql/*.sql sqlite/*.sql
var Migrations embed.FS
