package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/transfers"
)

const (
	transferSize   = 1 << 30 // bytes
	transferRounds = 3       // each round's snapshot stays on the disk
	flat           = 16e6    // bytes that a gateway may grow by while it serves
)

// serveFiles is Go's plain file server over a directory.
func serveFiles(dir string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/\n", l.Addr())
	return http.Serve(l, http.FileServer(http.Dir(dir)))
}

// exports compares an export, which copies, hashes and records a file, with cp
// and sha256sum one after the other, and its download with Go's file server.
func exports(ctx context.Context, b *bench) ([]row, error) {
	w, err := openWorkspace(ctx, b, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	path := filepath.Join(w.dir, "big.bin")
	if err := fill(path, transferSize); err != nil {
		return nil, err
	}
	var link string
	copied := filepath.Join(b.dir, "copied.bin")
	s, err := inTurns(transferRounds,
		repeated(1, func() (err error) { link, err = w.export(ctx, "local", "big.bin"); return err }),
		repeated(1, func() error {
			if err := exec.Command("cp", path, copied).Run(); err != nil {
				return err
			}
			return exec.Command("sha256sum", copied).Run()
		}))
	if err != nil {
		return nil, err
	}
	if err := os.Remove(copied); err != nil {
		return nil, err
	}
	rate := s.ratio(1, 0) // the times are inverse to the rates
	rows := []row{ratioed("export_direct_file of 1 GiB until it is ready", bytesPerSecond(s.median(0)),
		"cp and sha256sum: "+bytesPerSecond(s.median(1)), rate).atLeast(rate, 0.5, "0.5")}
	more, err := downloads(b, w, link)
	return append(rows, more...), err
}

// downloads compares the link's rate and looks at the gateway's memory meanwhile.
func downloads(b *bench, w *workspace, link string) ([]row, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	plain, err := start(exec.Command(self, "files", w.dir))
	if err != nil {
		return nil, err
	}
	defer plain.stop()
	before, err := w.program.rss()
	if err != nil {
		return nil, err
	}
	most := before
	s, err := inTurns(b.rounds,
		repeated(1, func() error {
			done, peak := make(chan struct{}), make(chan float64)
			go func() { peak <- w.program.watch(done) }()
			err := download(link)
			close(done)
			most = max(most, <-peak)
			return err
		}),
		repeated(1, func() error { return download(strings.TrimSpace(plain.line) + "big.bin") }))
	if err != nil {
		return nil, err
	}
	rate, growth := s.ratio(1, 0), most-before
	return []row{
		ratioed("download of a ready link, 1 GiB", bytesPerSecond(s.median(0)), "Go's file server: "+bytesPerSecond(s.median(1)), rate).atLeast(rate, 0.7, "0.7"),
		row{name: fmt.Sprintf("RSS growth in %d such downloads, at the most", b.rounds), measured: megabytes(growth)}.atMost(growth, flat, "16 MB"),
	}, nil
}

// watch is the most memory that the program has until done.
func (p *program) watch(done <-chan struct{}) (most float64) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		rss, err := p.rss()
		if err == nil {
			most = max(most, rss)
		}
		select {
		case <-done:
			return most
		case <-tick.C:
		}
	}
}

// export exports a file of a host and returns the link when it works.
func (w *workspace) export(ctx context.Context, hostID, path string) (link string, err error) {
	id := uuid.NewString()
	var out transfers.Transfer
	err = w.session.Call(ctx, "export_direct_file", map[string]any{"hostId": hostID, "projectId": project, "path": path, "requestId": id}, &out)
	for err == nil && out.State == transfers.Pending {
		time.Sleep(5 * time.Millisecond)
		err = w.session.Call(ctx, "get_direct_transfer", map[string]any{"hostId": hostID, "requestId": id}, &out)
	}
	if err == nil && out.State != transfers.Ready {
		err = fmt.Errorf("an export is %s: %v", out.State, out.Error)
	}
	return out.DownloadURL, err
}

func download(link string) error {
	res, err := http.Get(link)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || n != transferSize) {
		err = fmt.Errorf("a download ended with status %d and %d bytes", res.StatusCode, n)
	}
	return err
}

// fill makes a file of bytes that no file system can make smaller.
func fill(path string, size int64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.CopyN(f, rand.Reader, size)
	return err
}

func bytesPerSecond(seconds float64) string {
	return fmt.Sprintf("%.0f MB/s", transferSize/seconds/1e6)
}
