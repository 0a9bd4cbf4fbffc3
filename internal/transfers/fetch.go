package transfers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// fetch downloads an address into the spool. Every error is a refusal, trouble
// of the gateway's disk, or the end of ctx.
func (s *Service) fetch(ctx context.Context, r row, address string) (size int64, sum string, err error) {
	ctx, watched := s.watch(ctx)
	defer watched.end()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, "", DownloadRefused.New("file.download_url can't be read.")
	}
	req.Header.Set("Accept", "*/*")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "AgentRelay")
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, "", watched.reason(downloadError(err))
	}
	defer resp.Body.Close()
	if err := acceptable(resp); err != nil {
		return 0, "", err
	}
	if resp.ContentLength > 0 {
		if err := s.spool.reserve(r.spool, r.owner, resp.ContentLength); err != nil {
			return 0, "", err
		}
	}
	w, err := s.spool.create(r.spool, r.owner, s.limits.FileBytes)
	if err != nil {
		return 0, "", err
	}
	s.crash("downloading")
	_, err = copyInto(w, &counted{resp.Body, &watched.bytes})
	if err == nil { // a source that ends its answer when it is left must not pass for a whole one
		err = ctx.Err()
	}
	if err != nil {
		w.abandon()
		if trouble := new(spoolTrouble); errors.As(err, &trouble) {
			return 0, "", trouble.error
		}
		return 0, "", watched.reason(downloadError(err))
	}
	return w.finish()
}

// acceptable refuses answers that are not the file as it is.
func acceptable(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return DownloadFailed.Newf("The source answered with status %d.", resp.StatusCode)
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return DownloadFailed.New("The source answered with an encoded content although the plain one was asked for.")
	}
	return nil
}

// watch ends ctx when a download makes no real progress, or takes too long.
func (s *Service) watch(ctx context.Context) (context.Context, *watched) {
	ctx, stop := context.WithTimeoutCause(ctx, s.limits.ImportTime, errStalled)
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watched{ctx: ctx, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer stop()
		tick := time.NewTicker(s.limits.Stall)
		defer tick.Stop()
		for last := int64(0); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := w.bytes.Load()
			if now-last < minStallBytes {
				cancel(errStalled)
				return
			}
			last = now
		}
	}()
	return ctx, w
}

var errStalled = errors.New("no progress")

type watched struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	bytes  atomic.Int64
	done   chan struct{}
}

func (w *watched) end() {
	w.cancel(nil)
	<-w.done
}

// reason is err, or the stall that caused it.
func (w *watched) reason(err error) error {
	if errors.Is(context.Cause(w.ctx), errStalled) {
		return DownloadStalled.New("The source stopped sending, or sent too slowly.")
	}
	return err
}

// counted counts what is read.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}
