package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// readyTimeout bounds the question whether the store answers.
const readyTimeout = 2 * time.Second

// alive answers that the process serves requests, and nothing else.
func (g *Gateway) alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// ready answers whether work can be done now, with the reason when not. The
// cause stays in the log: it can name paths.
func (g *Gateway) ready(w http.ResponseWriter, r *http.Request) {
	reason, cause := "", error(nil)
	if g.stopping.Err() != nil {
		reason = "The gateway is stopping."
	} else if cause = g.ping(r.Context()); errors.Is(cause, context.DeadlineExceeded) {
		reason = "The gateway's store does not answer in time."
	} else if cause != nil {
		reason = "The gateway's store does not answer."
	}
	if reason == "" {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
		return
	}
	w.Header().Set("Retry-After", "5")
	e := notReady.New(reason)
	if cause != nil {
		e = e.Because(cause)
	}
	refuse(w, r, http.StatusServiceUnavailable, e)
}

// Works reports whether the gateway can do its work now: its store answers.
func (g *Gateway) Works(ctx context.Context) bool { return g.ping(ctx) == nil }

func (g *Gateway) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return g.store.Ping(ctx)
}
