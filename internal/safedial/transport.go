package safedial

import (
	"io"
	"net/http"
)

// transport checks every request's URL and bounds every answer's body.
type transport struct {
	d    *Dialer
	base *http.Transport
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.d.checkURL(req.URL); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.ContentLength > t.d.o.MaxBytes {
		resp.Body.Close()
		return nil, ErrTooLarge
	}
	resp.Body = &limited{resp.Body, t.d.o.MaxBytes}
	return resp, nil
}

// CloseIdleConnections serves [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

// limited is a body that fails where [io.LimitReader] would pretend to end.
type limited struct {
	io.ReadCloser
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	// One byte more than is left tells an exact fit from an overrun.
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.ReadCloser.Read(p)
	if int64(n) > l.left {
		n, l.left = int(l.left), 0
		return n, ErrTooLarge
	}
	l.left -= int64(n)
	return n, err
}
