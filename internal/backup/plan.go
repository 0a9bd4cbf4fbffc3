package backup

import (
	"cmp"
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/store"
)

// Plan is how the owner's config wants backups.
type Plan struct {
	source Source
	dir    string
	every  time.Duration
	keep   int
}

// PlanOf reads a config. now nil is time.Now.
func PlanOf(c *config.Config, now func() time.Time) Plan {
	return Plan{
		source: Source{StateDir: c.StateDir, ConfigFile: c.File(), OwnerFile: c.OwnerTokenFile, Version: version(), Now: now},
		dir:    c.Backup.Dir, every: c.Backup.Interval(), keep: c.Backup.Keep,
	}
}

// Make makes a set of an open store in a directory, "" for that of the config, and
// removes the oldest of its kind.
func (p Plan) Make(ctx context.Context, s *store.Store, dir string, kind Kind) (Set, error) {
	return p.make(ctx, s.Copy, dir, kind)
}

// BeforeUpgrade is for [store.Options].
func (p Plan) BeforeUpgrade(ctx context.Context, u store.Upgrade) error {
	_, err := p.make(ctx, u.Copy, "", Upgrade)
	return err
}

func (p Plan) make(ctx context.Context, copy func(context.Context, string) error, dir string, kind Kind) (Set, error) {
	src := p.source
	src.Copy = copy
	dir = cmp.Or(dir, p.dir)
	set, err := Create(ctx, src, dir, kind)
	if err != nil {
		return Set{}, err
	}
	_, err = Prune(dir, kind, p.keep)
	return set, err
}

// Schedule makes backups of an open store.
func (p Plan) Schedule(s *store.Store, log *slog.Logger) *Schedule {
	src := p.source
	src.Copy = s.Copy
	return &Schedule{Source: src, Dir: p.dir, Every: p.every, Keep: p.keep, Log: log}
}

// version is that of this program.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
