package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"agentrelay/internal/direct/files"
)

const (
	missLines  = 200_000
	missLine   = 150_000 // the one in which a space is another than it looks
	missBound  = 0.2     // seconds
	tailSize   = 5 << 30 // bytes
	tailLines  = 200
	tailBound  = 0.05 // seconds
	tailRounds = 10   // calls in one round
	nbsp       = "\u00a0"
)

// misses compares edits whose text does not occur in a long file because of one
// no-break space. The gateway names that line and the difference; Desktop
// Commander looks for similar text.
func misses(ctx context.Context, b *bench) ([]row, error) {
	w, err := openWorkspace(ctx, b, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	dc, err := startCommander(ctx, b)
	if err != nil {
		return nil, err
	}
	defer dc.close()
	var text strings.Builder
	wanted := ""
	for i := range missLines {
		line := fmt.Sprintf("\tcase %d: return fmt.Errorf(\"entry %d of the table\")", i, i)
		if i == missLine {
			wanted = line
			line = strings.Replace(line, "of the", "of"+nbsp+"the", 1)
		}
		text.WriteString(line + "\n")
	}
	path := filepath.Join(w.dir, "long.txt")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(text.String()))
	s, err := inTurns(3, // Desktop Commander takes long
		repeated(5, func() error {
			return refusedAs(w.session.Call(ctx, "edit_direct_file", map[string]any{
				"projectId": project, "path": "long.txt", "expectedSha256": hex.EncodeToString(sum[:]), "oldText": wanted, "newText": "x",
			}, nil), files.TextNotFound.Code)
		}),
		repeated(1, func() error {
			answer, err := dc.call(ctx, "edit_block", map[string]any{"file_path": path, "old_string": wanted, "new_string": "x"})
			if strings.Contains(answer, "Successfully") {
				err = errors.New("an edit by Desktop Commander changed what was not there")
			}
			return err
		}))
	if err != nil {
		return nil, err
	}
	ours := s.median(0)
	return []row{ratioed(fmt.Sprintf("edit_direct_file that misses by a no-break space, %d lines", missLines), milli(ours),
		"Desktop Commander: "+milli(s.median(1)), s.ratio(0, 1)).atMost(ours, missBound, "200 ms")}, nil
}

// tails reads the last lines of a file that is long and mostly a hole.
func tails(ctx context.Context, b *bench) ([]row, error) {
	w, err := openWorkspace(ctx, b, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	var end strings.Builder
	for i := range 10 * tailLines {
		fmt.Fprintf(&end, "line %d of the end of a log\n", i)
	}
	f, err := os.Create(filepath.Join(w.dir, "log.txt"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("\n"+end.String()), tailSize-int64(end.Len())-1); err != nil {
		return nil, err
	}
	s, err := inTurns(directRounds, repeated(tailRounds, func() error {
		var out files.ReadDirectFileOut
		err := w.session.Call(ctx, "read_direct_file", map[string]any{"projectId": project, "path": "log.txt", "tail": true, "limit": tailLines}, &out)
		if err == nil && (out.ReturnedLines != tailLines || !strings.HasSuffix(end.String(), out.Content)) {
			err = fmt.Errorf("a tail has %d lines", out.ReturnedLines)
		}
		return err
	}))
	if err != nil {
		return nil, err
	}
	took := s.median(0)
	return []row{row{name: fmt.Sprintf("read_direct_file, the last %d lines of 5 GiB", tailLines), measured: milli(took)}.atMost(took, tailBound, "50 ms")}, nil
}
