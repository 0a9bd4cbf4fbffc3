package files

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	"agentrelay/internal/direct"
)

// locks holds one lock for each directory in which something is being written
// (so that no spelling of a name and no overlap of projects gets round it) and
// one for each file with further links.
type locks struct {
	mu   sync.Mutex
	held map[direct.FileID]*lock
}

type lock struct {
	token chan struct{} // holds one value while the lock is free
	users int
}

// acquire waits for a lock. The caller must call release once.
func (l *locks) acquire(ctx context.Context, id direct.FileID) (release func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[direct.FileID]*lock{}
	}
	k := l.held[id]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		l.held[id] = k
	}
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, id)
		}
	}
	select {
	case <-k.token:
		return func() { k.token <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// Lock keeps the writes of this service away from the entries of a directory
// until release, which is called once. It is for what else replaces files there.
func (s *Service) Lock(ctx context.Context, dir direct.FileID) (release func(), err error) {
	return s.locks.acquire(ctx, dir)
}

// locked finds rel for writing and calls do while nothing else of this service
// writes in that directory, nor to that file under another name. The place is
// as it was found under the lock.
func (s *Service) locked(ctx context.Context, t *direct.Tree, rel string, access direct.Access, do func(*direct.Place) error) error {
	for range 5 {
		p, err := t.Find(rel, access)
		if err != nil {
			return err
		}
		err = s.withLocks(ctx, p, do)
		p.Close()
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	return direct.FileChanged.New("path keeps changing while it is to be written.")
}

// errMoved says that another entry stands at the place by now.
var errMoved = errors.New("the place has changed")

func (s *Service) withLocks(ctx context.Context, p *direct.Place, do func(*direct.Place) error) error {
	dir, err := p.Dir.Stat(".")
	if err != nil {
		return err
	}
	release, err := s.locks.acquire(ctx, direct.Identify(dir))
	if err != nil {
		return err
	}
	defer release()
	info, err := p.Dir.Lstat(p.Name)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = nil, nil
	}
	if err != nil {
		return err
	}
	if (info == nil) != (p.Info == nil) || info != nil && direct.Identify(info) != direct.Identify(p.Info) {
		return errMoved
	}
	p.Info = info
	if info != nil && info.Mode().IsRegular() && direct.Links(info) > 1 {
		release, err := s.locks.acquire(ctx, direct.Identify(info))
		if err != nil {
			return err
		}
		defer release()
	}
	return do(p)
}
