package backup

import (
	"path/filepath"
	"testing"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/store"
)

func TestPlanOfAConfig(t *testing.T) {
	i := install(t)
	raw := `{"stateDir": "` + i.src.StateDir + `", "backup": {"dir": "` + filepath.Join(i.dir, "b") + `", "every": "2h", "keep": 2}}`
	c, _, err := config.Parse("config.json", []byte(raw), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	p := PlanOf(c, func() time.Time { at = at.Add(time.Minute); return at })
	for range 3 {
		if err := p.BeforeUpgrade(t.Context(), store.Upgrade{From: 1, To: 2, Copy: i.store.Copy}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Make(t.Context(), i.store, "", Manual); err != nil {
			t.Fatal(err)
		}
	}
	sets, _, err := List(c.Backup.Dir)
	kinds := map[Kind]int{}
	for _, s := range sets {
		kinds[s.Kind]++
	}
	if err != nil || kinds[Upgrade] != 2 || kinds[Manual] != 3 {
		t.Errorf("there are %v, %v", kinds, err)
	}
	if s := p.Schedule(i.store, nil); s.Every != 2*time.Hour || s.Keep != 2 || s.Dir != c.Backup.Dir {
		t.Errorf("the schedule is every %v, keeps %d, in %s", s.Every, s.Keep, s.Dir)
	}
	for _, bad := range []string{`"every": "soon"`, `"keep": 0`, `"dir": "` + i.src.StateDir + `"`} {
		if _, _, err := config.Parse("config.json", []byte(`{"stateDir": "`+i.src.StateDir+`", "backup": {`+bad+`}}`), func(string) string { return "" }); err == nil {
			t.Errorf("%s passes", bad)
		}
	}
	off, _, err := config.Parse("config.json", []byte(`{"stateDir": "/x", "backup": {"every": "off"}}`), func(string) string { return "" })
	if err != nil || off.Backup.Interval() != 0 || off.Backup.Dir != "/x/backups" {
		t.Errorf("off is %+v, %v", off, err)
	}
}
