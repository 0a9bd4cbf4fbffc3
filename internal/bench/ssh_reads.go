package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentrelay/internal/direct/files"
)

const (
	smallFile = "small.txt"
	smallSize = 4 << 10 // bytes
	plainRuns = 20      // of programs in one round
	atOnce    = 200     // calls
)

// smallReads compares a read of a file on an SSH host with ssh, to which a
// connection is lent that is there already.
func smallReads(ctx context.Context, b *bench) ([]row, error) {
	w, m, err := farWorkspace(ctx, b)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	defer w.close()
	text := strings.Repeat("one line of a file\n", smallSize/19)
	if err := os.WriteFile(filepath.Join(w.dir, smallFile), []byte(text), 0o600); err != nil {
		return nil, err
	}
	client, stop := m.alone(ctx)
	defer stop()
	if _, err := client.At(ctx); err != nil {
		return nil, err
	}
	stopMaster, err := m.master()
	if err != nil {
		return nil, err
	}
	defer stopMaster()
	request := w.home.mcp.request("read_direct_file", map[string]any{"hostId": far, "projectId": project, "path": smallFile})
	one, err := gather(w.home.mcp, 1)
	if err != nil {
		return nil, err
	}
	defer one.close()
	read := func() error {
		out, err := client.ReadDirectFile(ctx, files.ReadDirectFileIn{ProjectID: project, Path: smallFile})
		if err == nil && out.Content != text {
			err = fmt.Errorf("a read has %d bytes", len(out.Content))
		}
		return err
	}
	s, err := inTurns(b.rounds,
		b.median(one, always(request)),
		repeated(b.calls, read),
		repeated(plainRuns, func() error {
			out, err := m.ssh("cat", filepath.Join(w.dir, smallFile)).Output()
			if err == nil && string(out) != text {
				err = fmt.Errorf("ssh printed %d bytes", len(out))
			}
			return err
		}))
	if err != nil {
		return nil, err
	}
	cat := "ssh host cat, over a shared connection: " + milli(s.median(2))
	through, alone := s.ratio(0, 2), s.ratio(1, 2)
	rows := []row{
		ratioed("read_direct_file of 4 KiB on an SSH host, p50", milli(s.median(0)), cat, through).atMost(through, 1, "1.0"),
		ratioed("the same, the worker's client alone", milli(s.median(1)), cat, alone).atMost(alone, 1, "1.0"),
	}
	more, err := manyReads(b, w.home.mcp, one, request, read)
	return append(rows, more...), err
}

// manyReads makes small reads at once, all of which go over one connection, and
// the same number one after the other.
func manyReads(b *bench, e endpoint, one crowd, request []byte, read func() error) ([]row, error) {
	many, err := gather(e, atOnce)
	if err != nil {
		return nil, err
	}
	defer many.close()
	slow := make([][]float64, 2)
	s, err := inTurns(b.rounds,
		func() (float64, error) {
			times, all, err := many.load(sent(always(request)), func(calls int, _ time.Duration) bool { return calls == 1 })
			slow[0] = append(slow[0], percentile(seconds(times), 99))
			return all.Seconds(), err
		},
		func() (float64, error) {
			_, all, err := one.load(sent(always(request)), func(calls int, _ time.Duration) bool { return calls == atOnce })
			return all.Seconds(), err
		},
		func() (float64, error) {
			times, all, err := many.load(func(*wire, int) error { return read() }, func(calls int, _ time.Duration) bool { return calls == 1 })
			slow[1] = append(slow[1], percentile(seconds(times), 99))
			return all.Seconds(), err
		})
	if err != nil {
		return nil, err
	}
	ratio := s.ratio(0, 1)
	return []row{
		ratioed(fmt.Sprintf("%d such reads at once, over one SSH connection", atOnce), milli(s.median(0))+", p99 "+milli(percentile(slow[0], 50)),
			"one after the other: "+milli(s.median(1)), ratio).atMost(ratio, 1, "1.0"),
		{name: "the same, the worker's client alone", measured: milli(s.median(2)) + ", p99 " + milli(percentile(slow[1], 50))},
	}, nil
}
