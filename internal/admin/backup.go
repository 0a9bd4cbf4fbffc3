package admin

import (
	"context"

	"agentrelay/internal/audit"
	"agentrelay/internal/backup"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// BackupIn says where a backup is made, absolute; "" is the directory of the config.
type BackupIn struct {
	Dir string `json:"dir"`
}

// BackupOut is a backup that was made, and the directory that it is.
type BackupOut struct {
	backup.Set
	Path string `json:"path"`
}

// MakeBackup makes a backup that stays until the owner removes it.
var MakeBackup = Command[BackupIn, BackupOut]{"backup.create", func(ctx context.Context, b *Backend, in BackupIn) (BackupOut, error) {
	set, err := b.Backups.Make(ctx, b.Store, in.Dir, backup.Manual)
	if err != nil {
		return BackupOut{}, err
	}
	return BackupOut{set, set.Dir}, store.Exec(ctx, b.Store, func(tx *store.Tx) error {
		return audit.Record(tx, principal.Owner(""), "backup.create", set.ID, audit.OK, "bytes", set.Bytes())
	})
}}
