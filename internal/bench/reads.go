package main

import (
	"context"
	"database/sql"
	"path/filepath"
	"time"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// reads compares one indexed read of the store, which has a snapshot of its own,
// with the same query on a connection that nobody shares, prepared once.
func reads(ctx context.Context, b *bench) ([]row, error) {
	box, err := openBox(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	defer box.close()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(box.store.Dir(), store.FileName)+"?mode=ro")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	const query = `SELECT id, display_name FROM mailbox_peers WHERE owner = ? AND peer_id = ?`
	prepared, err := db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer prepared.Close()

	var id int64
	var name string
	repeat := func(read func() error) side {
		return func() (float64, error) {
			count, begun := 0, time.Now()
			for ; time.Since(begun) < b.slice/2; count++ {
				if err := read(); err != nil {
					return 0, err
				}
			}
			return time.Since(begun).Seconds() / float64(count), nil
		}
	}
	s, err := inTurns(b.rounds,
		repeat(func() error {
			return store.Read(ctx, box.store, func(r *store.Reader) error {
				return r.QueryRow(query, principal.SharedOwner, "b").Scan(&id, &name)
			})
		}),
		repeat(func() error { return prepared.QueryRowContext(ctx, principal.SharedOwner, "b").Scan(&id, &name) }),
		repeat(func() error { return db.QueryRowContext(ctx, query, principal.SharedOwner, "b").Scan(&id, &name) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{
		ratioed("indexed read of the store, with its own snapshot", micro(s.median(0)), "prepared SELECT, no snapshot: "+micro(s.median(1)), s.ratio(0, 1)),
		ratioed("the same", micro(s.median(0)), "SELECT that is not prepared: "+micro(s.median(2)), s.ratio(0, 2)),
	}, nil
}
