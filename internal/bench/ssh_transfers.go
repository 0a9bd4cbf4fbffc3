package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// farExports compares an export, which is hashed on both machines and on disk
// when it is ready, with scp.
func farExports(ctx context.Context, b *bench) ([]row, error) {
	w, m, err := farWorkspace(ctx, b)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	defer w.close()
	path := filepath.Join(w.dir, "big.bin")
	if err := fill(path, transferSize); err != nil {
		return nil, err
	}
	copied := m.file("copied.bin")
	s, err := inTurns(transferRounds,
		repeated(1, func() error { _, err := w.export(ctx, far, "big.bin"); return err }),
		repeated(1, func() error {
			out, err := exec.Command("scp", "-q", "-F", m.config, far+":"+path, copied).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("scp: %w: %s", err, out)
			}
			return err
		}))
	if err != nil {
		return nil, err
	}
	rate := s.ratio(1, 0)
	return []row{ratioed("export_direct_file of 1 GiB on an SSH host until it is ready", bytesPerSecond(s.median(0)),
		"scp: "+bytesPerSecond(s.median(1)), rate).atLeast(rate, 0.6, "0.6")}, nil
}
