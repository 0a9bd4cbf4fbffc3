package transfers

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"agentrelay/internal/direct"
)

// Snapshot is the content of a file at one moment.
type Snapshot struct {
	Path string // project-relative, behind all links
	Size int64  // bytes
	// Content ends with [io.EOF] only if what was read is the whole file as it
	// was at one moment; otherwise reading fails with the refusal file_changed,
	// and opening the file again may succeed. Content may be a [Cloner] or
	// [Summed]. It must be closed.
	Content io.ReadCloser
}

// Cloner is content that can be copied without being read.
type Cloner interface {
	// CloneTo makes a new private file at path that shares the storage of the
	// content as it is now. The error is [errors.ErrUnsupported], and there is no
	// file, where file systems can't do that.
	CloneTo(path string) error
}

// Summed is content that comes from afar with the SHA-256 that it had there, in
// lower-case hexadecimal digits. It is known when the content has been read to its
// end. Whoever takes the content compares it with what arrived: [Arrived].
type Summed interface{ SHA256() string }

// Arrived refuses content whose SHA-256 is not the one that it was sent with.
func Arrived(content io.Reader, sum string) error {
	if s, ok := content.(Summed); ok && s.SHA256() != sum {
		return Corrupted.New("What arrived from the host is not what was sent.").WithHint("Repeat the export with a new requestId; if it fails again, the owner should look at the connection to that host.")
	}
	return nil
}

// Open opens a file of a project for reading.
//
// Refusals: invalid_arguments, not_regular_file, path_not_found, and the others
// of package direct.
func (s *Service) Open(ctx context.Context, projectID, path string) (*Snapshot, error) {
	t, err := s.host.Open(projectID, direct.Read)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	p, err := t.Find(path, direct.ToRead)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	f, _, err := openPlain(p, os.O_RDONLY)
	if err != nil {
		return nil, t.Fault(err, path)
	}
	info, err := s.rest(ctx, f)
	if err != nil {
		f.Close()
		return nil, t.Fault(err, path)
	}
	fault := func(err error) error { return s.host.Fault(err, path) }
	return &Snapshot{Path: p.Path, Size: info.Size(), Content: &content{f: f, before: info, fault: fault}}, nil
}

// openPlain opens the plain file at a place. What is no plain file is refused
// before it is opened, for opening a pipe or a device can hang or do something.
func openPlain(p *direct.Place, flag int) (*os.File, fs.FileInfo, error) {
	switch {
	case p.Info == nil:
		return nil, nil, direct.PathNotFound.New("path names nothing in this project.")
	case !p.Info.Mode().IsRegular():
		return nil, nil, direct.NotRegularFile.New("path is not a plain file.")
	}
	f, err := p.Dir.OpenFile(p.Name, flag|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && direct.Identify(info) != direct.Identify(p.Info) {
		err = direct.FileChanged.New("path was replaced during the call.")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// tick is longer than the steps in which file systems take the time. A change
// within the step of the one before leaves the same time, so what was changed a
// moment ago could change again unseen.
const tick = 25 * time.Millisecond

// rest waits until a further change of f would show, and returns what f is then.
func (s *Service) rest(ctx context.Context, f *os.File) (fs.FileInfo, error) {
	for range 4 {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if age := s.now().Sub(direct.ChangedAt(info)); age < 0 || age >= tick {
			return info, nil
		}
		select {
		case <-time.After(tick):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, changed()
}

func changed() error { return direct.FileChanged.New("The file was changed while it was read.") }

// content reads a file and notices when it changes meanwhile.
type content struct {
	f      *os.File
	before fs.FileInfo
	read   int64
	fault  func(error) error
}

// Read implements [io.Reader].
func (c *content) Read(b []byte) (int, error) {
	n, err := c.f.Read(b)
	c.read += int64(n)
	switch {
	case c.read > c.before.Size():
		return 0, changed()
	case errors.Is(err, io.EOF):
		if err := c.unchanged(); err != nil {
			return n, err
		}
		return n, io.EOF
	}
	return n, c.fault(err)
}

func (c *content) unchanged() error {
	now, err := c.f.Stat()
	if err != nil {
		return c.fault(err)
	}
	if c.read != c.before.Size() || !same(now, c.before) || !direct.ChangedAt(now).Equal(direct.ChangedAt(c.before)) {
		return changed()
	}
	return nil
}

// same reports whether two looks at a file saw the same content, as far as the
// file system tells. Renaming does not count.
func same(a, b fs.FileInfo) bool {
	return direct.Identify(a) == direct.Identify(b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// CloneTo implements [Cloner].
func (c *content) CloneTo(path string) error { return clone(c.f, path) }

// Close implements [io.Closer].
func (c *content) Close() error { return c.f.Close() }
