package store

import (
	"context"
	"database/sql"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

const benchCallers = 64

// BenchmarkWrites compares 64 callers, each waiting for its own one-row write
// to be on disk: through the queue, and with one commit a write. The ratio of
// their ns/op is what group commit is worth.
func BenchmarkWrites(b *testing.B) {
	row := strings.Repeat("x", 300)
	const query = `INSERT INTO t (id, v) VALUES (?, ?)`
	bench := func(b *testing.B, write func(id int64) error) {
		var next atomic.Int64
		b.SetParallelism((benchCallers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := write(next.Add(1)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.Run("queue", func(b *testing.B) {
		s := open(b, "")
		before := s.Commits()
		bench(b, func(id int64) error {
			return Exec(context.Background(), s, func(tx *Tx) error {
				_, err := tx.Exec(query, id, row)
				return err
			})
		})
		b.ReportMetric(float64(s.Commits()-before)/float64(b.N), "commits/op")
	})
	b.Run("commit-each", func(b *testing.B) {
		dir := b.TempDir() + "/state"
		if err := open(b, dir).Close(); err != nil {
			b.Fatal(err)
		}
		db, err := sql.Open("sqlite", dsn(filepath.Join(dir, FileName), false))
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		bench(b, func(id int64) error {
			_, err := db.Exec(query, id, row)
			return err
		})
		b.ReportMetric(1, "commits/op")
	})
}

// BenchmarkRead is one indexed read in a read transaction of its own.
func BenchmarkRead(b *testing.B) {
	s := open(b, "")
	for id := range 1000 {
		if err := Exec(context.Background(), s, insert(id)); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for id := 0; pb.Next(); id = (id + 1) % 1000 {
			var v string
			if err := Read(context.Background(), s, func(r *Reader) error {
				return r.QueryRow(`SELECT v FROM t WHERE id = ?`, id).Scan(&v)
			}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
