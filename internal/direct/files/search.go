package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"sync"

	"agentrelay/internal/direct"
)

// A search reads as many files at once as there are processors, within these
// bounds: with more, those that are there wait for each other.
const minWorkers, maxWorkers = 2, 8

// searchAhead is how many files a search may be ahead of the first one whose
// matches are not known yet.
const searchAhead = 64

// SearchDirectFiles answers the lines in which Query occurs, in the order of
// paths and lines. Binary files (a NUL byte in the first 8 KiB) and what can't be
// read are counted and left out. Links are not followed. In a line over 1 MiB a
// match of more than 64 KiB may be missed, and anchors may match where the
// scanner has cut it. A file is not searched beyond 2 GiB of one line.
//
// Refusals: invalid_arguments, invalid_cursor and those of package direct.
func (s *Service) SearchDirectFiles(ctx context.Context, in SearchDirectFilesIn) (SearchDirectFilesOut, error) {
	q, err := checkSearch(in)
	if err != nil {
		return SearchDirectFilesOut{}, err
	}
	t, err := s.host.Open(in.ProjectID, direct.Read)
	if err != nil {
		return SearchDirectFilesOut{}, err
	}
	defer t.Close()
	p, err := t.Find(in.Path, direct.ToRead)
	if err != nil {
		return SearchDirectFilesOut{}, t.Fault(err, in.Path)
	}
	defer p.Close()
	list := scope{
		"search_direct_files", in.ProjectID, p.Path, in.Query, globText(in.Glob),
		strconv.FormatBool(in.Regex), strconv.FormatBool(in.IgnoreCase), strconv.FormatBool(in.IncludeIgnored),
	}
	if q.after, err = list.position(in.Cursor); err != nil {
		return SearchDirectFilesOut{}, err
	}
	q.s, q.t, q.place, q.includeIgnored, q.tally = s, t, p, in.IncludeIgnored, &tally{limit: q.limit}
	out, rest, err := q.run(ctx)
	if err != nil {
		return SearchDirectFilesOut{}, t.Fault(err, in.Path)
	}
	out.HostID = t.HostID()
	if rest != nil {
		out.Truncated, out.NextCursor = true, list.cursor(*rest)
	}
	return out, nil
}

// search is one call.
type search struct {
	s              *Service
	t              *direct.Tree
	place          *direct.Place
	pattern        *pattern
	glob           *glob
	includeIgnored bool
	context, limit int
	after          *position
	tally          *tally
}

func checkSearch(in SearchDirectFilesIn) (q search, err error) {
	if q.limit, err = checkLimit(in.Limit, DefaultSearch, MaxSearch); err != nil {
		return q, err
	}
	if in.Context != nil {
		if q.context = *in.Context; q.context < 0 || q.context > MaxContext {
			return q, direct.Invalid("context", "must be 0 to 5")
		}
	}
	if q.glob, err = parseGlob(in.Glob); err != nil {
		return q, err
	}
	q.pattern, err = parsePattern(in.Query, in.Regex, in.IgnoreCase)
	return q, err
}

// job is one file to be scanned.
type job struct {
	found
	number int // in the order of the walk, from 1
	from   position
	done   chan struct{}
	out    scanned
	err    error // why it was left out
	// protected says that it is a protected file under another name.
	protected bool
	skipped   Skipped // by the walk until it came to this file
}

// run walks in one goroutine, scans in several, and collects in the order of
// the walk until there is enough. rest is where the next page begins.
func (q *search) run(ctx context.Context) (SearchDirectFilesOut, *position, error) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	ordered, todo := make(chan *job, searchAhead), make(chan *job, searchAhead)
	var walked walkResult
	group.Go(func() {
		defer close(ordered)
		defer close(todo)
		walked = q.walk(ctx, ordered, todo)
	})
	for range max(minWorkers, min(maxWorkers, runtime.GOMAXPROCS(0))) {
		group.Go(func() {
			sc := q.s.scanner(q.pattern, q.limit+1, q.context)
			defer q.s.putBack(sc)
			for j := range todo {
				q.scan(ctx, sc, j)
			}
		})
	}
	c := collector{limit: q.limit}
	c.out.Matches = []Match{}
	for j := range ordered {
		<-j.done
		if err := ctx.Err(); err != nil {
			return c.out, nil, err
		}
		if c.take(j) {
			cancel()
			for range ordered { // the walk may be waiting to hand one over
			}
			return c.finish(j.skipped), c.rest, nil
		}
	}
	if walked.err != nil {
		return c.out, nil, walked.err
	}
	return c.finish(walked.skipped), walked.rest, nil
}

type walkResult struct {
	skipped Skipped
	rest    *position
	err     error
}

// walk hands over the files to be searched.
func (q *search) walk(ctx context.Context, ordered, todo chan<- *job) (r walkResult) {
	budget, last, handed := q.s.budget(), position{}, 0
	hand := func(f found, from position) error {
		handed++
		j := &job{found: f, number: handed, from: from, done: make(chan struct{}), skipped: r.skipped}
		j.dir.retain()
		select {
		case ordered <- j:
			todo <- j // has room whenever ordered has
		case <-ctx.Done():
			j.dir.release()
			return ctx.Err()
		}
		return nil
	}
	if q.place.Info != nil && !q.place.Info.IsDir() {
		r.err = q.handFile(hand)
		return r
	}
	w := walk{ctx: ctx, t: q.t, recursive: true, includeIgnored: q.includeIgnored, skipped: &r.skipped}
	w.visit = func(f found) error {
		if q.tally.full(handed+1) || budget.spent() && last.path != "" {
			return errStop
		}
		last = position{path: f.path}
		switch {
		case f.typ.IsDir(), !q.glob.match(below(q.place.Path, f.path)):
			return nil
		case f.typ&fs.ModeSymlink != 0:
			r.skipped.Links++
			return nil
		case !f.typ.IsRegular():
			r.skipped.Special++
			return nil
		}
		return hand(f, position{})
	}
	r.err = q.walkFrom(&w, hand)
	if errors.Is(r.err, errStop) {
		r.err, r.rest = nil, &last
	}
	return r
}

// walkFrom begins with what is left of the file in which the last page ended.
func (q *search) walkFrom(w *walk, hand func(found, position) error) error {
	if q.place.Info == nil {
		return direct.PathNotFound.New("path names nothing in this project.")
	}
	if q.after == nil {
		return w.run(q.place, nil)
	}
	if q.after.line > 0 {
		p, err := q.t.Find(q.after.path, direct.ToRead)
		if err == nil && p.Info != nil && p.Info.Mode().IsRegular() && p.Path == q.after.path {
			if err := handPlace(p.Dir, p, *q.after, hand); err != nil {
				return err
			}
		} else if p != nil {
			p.Close()
		}
	}
	return w.run(q.place, &q.after.path)
}

// handFile searches the one file that path names.
func (q *search) handFile(hand func(found, position) error) error {
	if !q.place.Info.Mode().IsRegular() {
		return direct.NotRegularFile.New("path is neither a directory nor a plain file.")
	}
	from := position{}
	if q.after != nil {
		if q.after.line == 0 {
			return nil // it was dealt with
		}
		from = *q.after
	}
	root, err := q.place.Dir.OpenRoot(".")
	if err != nil {
		return err
	}
	return handPlace(root, q.place, from, hand)
}

// handPlace hands over the file at a place, whose directory it closes.
func handPlace(dir *os.Root, p *direct.Place, from position, hand func(found, position) error) error {
	shared, err := share(dir)
	if err != nil {
		return err
	}
	defer shared.release()
	return hand(found{shared, p.Name, p.Path, 0}, from)
}

// scan looks through one file.
func (q *search) scan(ctx context.Context, sc *scanner, j *job) {
	defer close(j.done)
	defer j.dir.release()
	if ctx.Err() != nil || q.tally.full(j.number) {
		return
	}
	f, info, err := j.dir.openPlain(j.name)
	if err != nil {
		j.err = q.t.Fault(err, j.path)
		return
	}
	defer f.Close()
	if j.protected = q.t.Protects(j.path, info); j.protected {
		return
	}
	if j.out, err = sc.file(ctx, f, info.Size(), j.from, scanBudget); err != nil {
		j.err = q.t.Fault(err, j.path)
		return
	}
	q.tally.add(j)
}

// tally counts what the scans of a page have found, so that none begins for a
// file that the page can't reach.
type tally struct {
	limit int

	mu             sync.Mutex
	matches, bytes int
	last           int // the number of the last file that is counted
}

func (t *tally) add(j *job) {
	size := 0
	for i := range j.out.hits {
		size += j.out.hits[i].size(j.path)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.matches += len(j.out.hits)
	t.bytes += size
	t.last = max(t.last, j.number)
}

// full reports that the page ends before the file with this number: what is
// counted lies before it, and is more than fits.
func (t *tally) full(number int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return number > t.last && (t.matches > t.limit || t.bytes > maxList+maxMatch)
}

// collector makes the answer from files in their order.
type collector struct {
	limit int
	bytes int
	out   SearchDirectFilesOut
	rest  *position
}

// take adds a file and reports whether the answer is full.
func (c *collector) take(j *job) bool {
	c.out.ScannedBytes += j.out.bytes
	behind := &position{path: j.path}
	switch {
	case j.protected:
		c.out.Skipped.Protected++
		c.rest = behind
		return false
	case j.err != nil:
		c.out.Skipped.count(j.err)
		c.rest = behind
		return false
	case j.out.binary:
		c.out.Skipped.Binary++
		c.rest = behind
		return false
	}
	c.out.ScannedFiles++
	for i, h := range j.out.hits {
		if len(c.out.Matches) == c.limit || c.bytes > maxList {
			if i > 0 {
				last := j.out.hits[i-1]
				c.rest = &position{j.path, last.Line, last.next}
			} else if j.from.line > 0 {
				c.rest = &position{j.path, j.from.line, j.from.offset}
			}
			return true
		}
		h.Path = j.path
		c.bytes += h.size(j.path)
		c.out.Matches = append(c.out.Matches, h.Match)
	}
	c.rest = behind
	if j.out.rest != nil {
		c.rest = &position{j.path, j.out.rest.line, j.out.rest.offset}
		return true
	}
	return c.out.ScannedBytes >= scanBudget
}

func (c *collector) finish(walked Skipped) SearchDirectFilesOut {
	s := &c.out.Skipped
	s.Ignored += walked.Ignored
	s.Links += walked.Links
	s.Protected += walked.Protected
	s.Special += walked.Special
	s.Unreadable += walked.Unreadable
	s.Changed += walked.Changed
	s.BadName += walked.BadName
	s.TooDeep += walked.TooDeep
	s.Temporary += walked.Temporary
	return c.out
}
