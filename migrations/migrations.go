// Package migrations holds the database schema as numbered SQL files.
//
// Each file NNNN_name.sql is one step, applied in one transaction and never
// edited after a release. The package owns no logic: internal/store applies the
// steps and refuses a database that is newer than the newest file here.
package migrations

import "embed"

// FS holds every migration of this binary.
//
//go:embed *.sql
var FS embed.FS
