package files

import (
	"context"
	"errors"
	"io/fs"

	"agentrelay/internal/direct"
)

// Lock keeps the writes of this service away from the entries of a directory
// until release, which is called once. It is for what else replaces files there.
func (s *Service) Lock(ctx context.Context, dir direct.FileID) (release func(), err error) {
	return s.locks.Acquire(ctx, dir)
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
	release, err := s.locks.Acquire(ctx, direct.Identify(dir))
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
		release, err := s.locks.Acquire(ctx, direct.Identify(info))
		if err != nil {
			return err
		}
		defer release()
	}
	return do(p)
}
