package events

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"agentrelay/internal/safedial"
)

const (
	headerSubscription = "X-MCP-Subscription-Id"
	userAgent          = "agent-relay"
	// maxDrain is how long an unread answer may be for its connection to be used
	// again.
	maxDrain = 4 << 10
)

// message is one POST.
type message struct {
	url          string
	id           string // webhook-id, the same at every attempt
	body         []byte
	subscription string   // of a callback
	keys         [][]byte // sign with each, in this order
	bearer       string   // instead of a signature
	readAnswer   int64    // how much of the answer's body is wanted
}

// answer is what came of a POST.
type answer struct {
	status     int // 0 without an answer
	retryAfter time.Duration
	body       []byte // at most one byte more than was wanted
	failure    string // why there is no answer
	// reached is whether the request may have reached the receiver.
	reached bool
}

func (a answer) ok() bool { return a.status >= 200 && a.status < 300 }

// reason is why an answer is not an acceptance.
func (a answer) reason() string {
	if a.failure != "" {
		return a.failure
	}
	return fmt.Sprintf("http_%d", a.status)
}

// headers signs a message for this moment (Standard Webhooks).
func (m message) headers(now time.Time) (http.Header, error) {
	h := http.Header{"Content-Type": {"application/json"}, "User-Agent": {userAgent}}
	if m.subscription != "" {
		h.Set(headerSubscription, m.subscription)
	}
	if m.bearer != "" {
		h.Set("Authorization", "Bearer "+m.bearer)
		return h, nil
	}
	var signatures []string
	for _, key := range m.keys {
		w, err := standardwebhooks.NewWebhookRaw(key)
		if err != nil {
			return nil, err
		}
		signature, err := w.Sign(m.id, now, m.body)
		if err != nil {
			return nil, err
		}
		signatures = append(signatures, signature)
	}
	h.Set(standardwebhooks.HeaderWebhookID, m.id)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return h, nil
}

// post makes one attempt. It ends within [attemptTimeout].
func (s *Service) post(ctx context.Context, m message) answer {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	var connected, badTLS atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			if err != nil {
				badTLS.Store(true)
			}
		},
	})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(m.body))
	if err != nil {
		return answer{failure: destinationRefused}
	}
	if r.Header, err = m.headers(s.now()); err != nil {
		return answer{failure: secretUnreadable}
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return answer{failure: classify(err, badTLS.Load(), connected.Load()), reached: connected.Load()}
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, retryAfter: parseRetryAfter(resp.Header, s.now()), reached: true}
	switch {
	case m.readAnswer > 0:
		if a.body, err = io.ReadAll(io.LimitReader(resp.Body, m.readAnswer+1)); err != nil {
			a.failure = classify(err, false, true)
		}
	case resp.ContentLength > 0 && resp.ContentLength <= maxDrain:
		_, _ = io.Copy(io.Discard, resp.Body) // the status has said it all
	}
	return a
}

// classify is why a request got no answer.
func classify(err error, badTLS, connected bool) string {
	var refused *safedial.RefusedError
	var slow net.Error
	switch {
	case errors.As(err, &refused):
		return destinationRefused
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return timedOut
	case badTLS:
		return tlsError
	case connected:
		return lost
	}
	return unreachable
}
