package transfers_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentrelay/internal/transfers"
)

const gib = 1 << 30

// random makes a file of a GiB of bytes that do not compress.
func random(b *testing.B, path string) {
	b.Helper()
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	source := rand.NewChaCha8([32]byte{1})
	if _, err := io.CopyN(f, source, gib); err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		b.Fatal(err)
	}
}

// drain downloads an address and returns how long it took.
func drain(b *testing.B, url string) time.Duration {
	b.Helper()
	start := time.Now()
	resp, err := client.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, 1<<20))
	if n != gib || err != nil {
		b.Fatalf("%d bytes, %v", n, err)
	}
	return time.Since(start)
}

// heapPeak watches the heap until stop is called.
func heapPeak() (stop func() uint64) {
	var peak atomic.Uint64
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapInuse))
			select {
			case <-quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() uint64 {
		close(quit)
		<-done
		return peak.Load()
	}
}

// BenchmarkDownload compares the download of a ready ticket with
// [http.ServeFile] of the same file, in turns. ratio is how many times its speed
// it has.
func BenchmarkDownload(b *testing.B) {
	r := newRig(b, transfers.Options{})
	random(b, r.path("f"))
	link := r.export("f", "r1").DownloadURL
	spooled := r.dir + "/state/" + transfers.SpoolDir + "/" + r.spooled()[0]
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { http.ServeFile(w, req, spooled) }))
	defer plain.Close()
	drain(b, plain.URL)
	stop := heapPeak()
	var ours, theirs time.Duration
	for b.Loop() {
		theirs += drain(b, plain.URL)
		ours += drain(b, link)
	}
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "ratio")
	b.ReportMetric(float64(b.N)/ours.Seconds(), "GiB/s")
	b.ReportMetric(float64(stop())/(1<<20), "MiB-heap")
}

// BenchmarkExport compares the export of a GiB with cp and sha256sum, in turns.
// ratio is how many times their speed it has.
func BenchmarkExport(b *testing.B) {
	r := newRig(b, transfers.Options{Limits: transfers.Limits{SpoolBytes: 1 << 40}})
	random(b, r.path("f"))
	copied := r.dir + "/copied"
	stop := heapPeak()
	var ours, theirs time.Duration
	for n := 0; b.Loop(); n++ {
		start := time.Now()
		if err := exec.Command("cp", r.path("f"), copied).Run(); err != nil {
			b.Fatal(err)
		}
		out, err := exec.Command("sha256sum", copied).Output()
		if err != nil {
			b.Fatal(err)
		}
		theirs += time.Since(start)
		os.Remove(copied)

		start = time.Now()
		in := r.exportIn("f", fmt.Sprint("r", n))
		got, err := r.ExportDirectFile(b.Context(), r.who, in)
		ours += time.Since(start)
		if err != nil || got.State != transfers.Ready || !strings.HasPrefix(string(out), got.SHA256) {
			b.Fatalf("%+v, %v", got, err)
		}
		if _, err := r.Revoke(b.Context(), r.who, transfers.RevokeIn{Owner: r.who.Owner}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "ratio")
	b.ReportMetric(float64(b.N)/ours.Seconds(), "GiB/s")
	b.ReportMetric(float64(stop())/(1<<20), "MiB-heap")
}

// BenchmarkImport downloads and places a GiB.
func BenchmarkImport(b *testing.B) {
	dir := b.TempDir()
	random(b, dir+"/f")
	s, o := source(b, func(w http.ResponseWriter, req *http.Request) { http.ServeFile(w, req, dir+"/f") })
	r := newRig(b, o)
	stop := heapPeak()
	var took time.Duration
	for n := 0; b.Loop(); n++ {
		start := time.Now()
		got := r.importFile(r.importIn("f", fmt.Sprint("r", n), s.URL, ""))
		took += time.Since(start)
		if r.is(got, transfers.Completed); *got.Size != gib {
			b.Fatal("not the whole file")
		}
		os.Remove(r.path("f"))
	}
	b.ReportMetric(float64(b.N)/took.Seconds(), "GiB/s")
	b.ReportMetric(float64(stop())/(1<<20), "MiB-heap")
}
