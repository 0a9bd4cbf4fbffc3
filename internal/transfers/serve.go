package transfers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// Download is the handler of GET and HEAD /files/{ticket}/{name}. It serves the
// snapshot of an export: whole, or one range (RFC 9110 section 14; of several the
// whole is sent), with a strong ETag for If-Range. Who has the link needs no
// other credential.
//
// Refusals: 404 unknown_ticket, whatever the reason; 416 range_not_satisfiable;
// 429 too_many_downloads with Retry-After; 503 unavailable with Retry-After.
func (s *Service) Download(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	leave, ok := s.enter()
	if !ok {
		s.unavailable(w, r, store.ErrClosed)
		return
	}
	defer leave()
	found, err := s.lookUp(r.Context(), r.URL.Path)
	if err != nil {
		s.unavailable(w, r, err)
		return
	}
	if found == nil {
		s.refuse(w, r, http.StatusNotFound, TicketUnknown.New("This link is unknown, or it has ended."))
		return
	}
	d := s.streams.add(found.id, http.NewResponseController(w))
	if d == nil {
		h.Set("Retry-After", "1")
		s.refuse(w, r, http.StatusTooManyRequests, TooManyDownloads.New("Too many downloads are running."))
		return
	}
	defer d.leave()
	// Again, now that a revocation would find the stream.
	if found, err = s.lookUp(r.Context(), r.URL.Path); err != nil {
		s.unavailable(w, r, err)
		return
	}
	if found == nil {
		s.refuse(w, r, http.StatusNotFound, TicketUnknown.New("This link is unknown, or it has ended."))
		return
	}
	s.serve(w, r, *found, d)
}

func (s *Service) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Retry-After", "5")
	s.refuse(w, r, http.StatusServiceUnavailable, fault.Unavailable.New("The gateway could not look the link up.").Because(err))
}

// lookUp returns the transfer that a path names, or nil.
func (s *Service) lookUp(ctx context.Context, path string) (*row, error) {
	ticket, name, ok := strings.Cut(strings.TrimPrefix(path, filesPrefix), "/")
	if !ok || ticket == "" {
		return nil, nil
	}
	found, ok, err := s.read(ctx, byTicket, hashTicket(ticket))
	switch {
	case err != nil || !ok:
		return nil, err
	case !found.linked(s.now()) || found.FileName != name:
		s.log.Info("a download was refused", "transfer", found.id, "path", found.Path, "ended", !found.linked(s.now()))
		return nil, nil
	}
	return &found, nil
}

// serve sends what was asked for, and stores what was sent.
func (s *Service) serve(w http.ResponseWriter, r *http.Request, found row, d *stream) {
	f, err := os.Open(s.spool.path(found.spool))
	if err != nil {
		s.unavailable(w, r, err)
		return
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", contentDisposition(found.FileName))
	h.Set("ETag", `"`+found.SHA256+`"`)
	if strings.Contains(r.Header.Get("Range"), ",") {
		r = r.Clone(r.Context())
		r.Header.Del("Range")
	}
	m := &meter{ResponseWriter: w, stream: d, stall: s.limits.Stall, size: *found.Size}
	http.ServeContent(m, r, "", time.Time{}, f)
	if m.unsatisfiable {
		h.Del("Content-Disposition")
		s.refuse(w, r, http.StatusRequestedRangeNotSatisfiable, RangeInvalid.New("The file does not have these bytes."))
	}
	d.end()
	d.leave()
	if r.Method == http.MethodHead || m.status/100 != 2 {
		return
	}
	if err := s.served(found.id, m.from, m.sent); err != nil {
		s.log.Error("what a download has sent could not be stored", "transfer", found.id, "error", err)
	}
	s.log.Info("a download ended", "transfer", found.id, "path", found.Path, "from", m.from, "bytes", m.sent, "cut", d.wasCut())
}

// served stores that bytes of an export were sent, and completes it when all
// were.
func (s *Service) served(id, from, n int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), endingTimeout)
	defer cancel()
	return store.Exec(ctx, s.store, func(tx *store.Tx) error {
		r, ok, err := find(tx, byID, id)
		if err != nil || !ok {
			return err
		}
		var c coverage
		if err := json.Unmarshal([]byte(r.served), &c); err != nil {
			return fmt.Errorf("reading what was served: %w", err)
		}
		c = c.with(from, from+n)
		raw, err := json.Marshal(c)
		if err != nil {
			return err
		}
		state := r.State
		if (state == Ready || state == Expired) && c.covers(*r.Size) {
			state = Completed
		}
		if _, err := tx.Exec(`UPDATE transfers SET bytes_served = bytes_served + ?, served = ?, state = ? WHERE id = ?`, n, string(raw), state, id); err != nil {
			return fmt.Errorf("storing what was served: %w", err)
		}
		if state == r.State {
			return nil
		}
		return r.record(tx, "file.download", audit.OK, "size", *r.Size)
	})
}

// meter passes an answer on in pieces, so that files go out without being copied
// through memory and what was sent is known at each moment.
type meter struct {
	http.ResponseWriter
	stream *stream
	stall  time.Duration
	size   int64

	status        int
	unsatisfiable bool // the answer would be a 416, which is ours to give
	from, sent    int64
}

// piece is what a receiver must take within the stall time.
const piece = 1 << 20

var errCut = errors.New("the download was cut")

// WriteHeader implements [http.ResponseWriter].
func (m *meter) WriteHeader(status int) {
	m.status = status
	h := m.Header()
	switch status {
	case http.StatusRequestedRangeNotSatisfiable:
		m.unsatisfiable = true
		h.Set("Cache-Control", "no-store") // which ServeContent takes from errors
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", m.size))
		return
	case http.StatusPartialContent:
		_, rest, _ := strings.Cut(h.Get("Content-Range"), " ")
		first, _, _ := strings.Cut(rest, "-")
		m.from, _ = strconv.ParseInt(first, 10, 64)
	}
	m.stream.extend(m.stall)
	m.ResponseWriter.WriteHeader(status)
}

// Write implements [io.Writer].
func (m *meter) Write(b []byte) (int, error) {
	if m.unsatisfiable {
		return len(b), nil
	}
	if !m.stream.extend(m.stall) {
		return 0, errCut
	}
	n, err := m.ResponseWriter.Write(b)
	m.sent += int64(n)
	return n, err
}

// ReadFrom implements [io.ReaderFrom].
func (m *meter) ReadFrom(r io.Reader) (total int64, err error) {
	limit, ok := r.(*io.LimitedReader)
	if !ok || m.unsatisfiable {
		return io.Copy(struct{ io.Writer }{m}, r)
	}
	for limit.N > 0 {
		if !m.stream.extend(m.stall) {
			return total, errCut
		}
		n, err := io.CopyN(m.ResponseWriter, limit.R, min(piece, limit.N))
		total, limit.N, m.sent = total+n, limit.N-n, m.sent+n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// contentDisposition names a download as RFC 6266 has it: in ASCII for old
// clients, and as it is.
func contentDisposition(name string) string {
	ascii := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '%' {
			return '_'
		}
		return r
	}, name)
	return `attachment; filename="` + ascii + `"; filename*=UTF-8''` + attributeChars(name)
}

// attributeChars encodes a value as RFC 8187 section 3.2.1 has it.
func attributeChars(s string) string {
	return strings.NewReplacer("+", "%20", "%7E", "~", "'", "%27", "(", "%28", ")", "%29", "*", "%2A").Replace(url.QueryEscape(s))
}

// refuseJSON is the form of a refusal where the edge has none of its own.
func refuseJSON(w http.ResponseWriter, _ *http.Request, status int, e *fault.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": e.Code, "message": e.Message, "hint": e.Hint, "retryable": e.Retryable}})
}
