package transfers

import (
	"net/http"
	"sync"
	"time"
)

// streams are the downloads that are running.
type streams struct {
	perTicket, most int

	mu  sync.Mutex
	of  map[int64]map[*stream]bool
	all int
}

func newStreams(perTicket, most int) streams {
	return streams{perTicket: perTicket, most: most, of: map[int64]map[*stream]bool{}}
}

// add registers a download of a transfer, or returns nil when there are too
// many.
func (t *streams) add(id int64, rc *http.ResponseController) *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all >= t.most || len(t.of[id]) >= t.perTicket {
		return nil
	}
	d := &stream{rc: rc}
	d.leave = sync.OnceFunc(func() { t.remove(id, d) })
	if t.of[id] == nil {
		t.of[id] = map[*stream]bool{}
	}
	t.of[id][d] = true
	t.all++
	return d
}

func (t *streams) remove(id int64, d *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.of[id], d); len(t.of[id]) == 0 {
		delete(t.of, id)
	}
	t.all--
}

// cut ends the downloads of a transfer.
func (t *streams) cut(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for d := range t.of[id] {
		d.cut()
	}
}

func (t *streams) cutAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.of {
		for d := range t.of[id] {
			d.cut()
		}
	}
}

// stream is one download. Its handler may be blocked in a write to a receiver
// that does not read, so it is ended by a deadline in the past.
type stream struct {
	leave func() // makes room for another download

	mu    sync.Mutex
	rc    *http.ResponseController
	isCut bool
	over  bool
}

func (d *stream) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isCut = true
	if !d.over {
		_ = d.rc.SetWriteDeadline(time.Unix(1, 0)) // a recorder of a test can't
	}
}

// extend gives the next write its time; false means that the stream was cut.
func (d *stream) extend(by time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isCut {
		_ = d.rc.SetWriteDeadline(time.Now().Add(by))
	}
	return !d.isCut
}

func (d *stream) wasCut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isCut
}

// end lets the connection go to its next request, unless the stream was cut.
func (d *stream) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	if !d.isCut {
		_ = d.rc.Flush()
		_ = d.rc.SetWriteDeadline(time.Time{})
	}
}
