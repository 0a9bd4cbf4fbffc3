package files

import (
	"context"
	"os"

	"agentrelay/internal/direct"
)

// OpenFile opens a file of a project for reading, with its path behind all
// links. The caller closes it. Refusals are those of [Service.ReadDirectFile].
func (s *Service) OpenFile(projectID, rel string) (*os.File, string, error) {
	t, err := s.host.Open(projectID, direct.Read)
	if err != nil {
		return nil, "", err
	}
	defer t.Close()
	p, err := t.Find(rel, direct.ToRead)
	if err != nil {
		return nil, "", t.Fault(err, rel)
	}
	defer p.Close()
	f, _, err := openFile(p, os.O_RDONLY)
	if err != nil {
		return nil, "", t.Fault(err, rel)
	}
	return f, p.Path, nil
}

// Import is a file of any size on its way into a project: bytes go to a
// temporary file beside the target, and Commit puts them in place as
// [Service.WriteDirectFile] does. It is used by one goroutine at a time.
type Import struct {
	s        *Service
	project  string
	rel      string
	expected string // "" creates
	st       *staged
}

// Stage begins an import. expectedSHA256 is what the target has now, nil when
// there must be none; Commit checks it. The caller must call Discard when done.
func (s *Service) Stage(ctx context.Context, projectID, rel string, expectedSHA256 *string) (*Import, error) {
	i := &Import{s: s, project: projectID, rel: rel}
	if expectedSHA256 != nil {
		var err error
		if i.expected, err = checkHash("expectedSha256", *expectedSHA256); err != nil {
			return nil, err
		}
	}
	t, err := s.host.Open(projectID, direct.Write)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	p, err := t.Find(rel, direct.ToWrite)
	if err != nil {
		return nil, t.Fault(err, rel)
	}
	defer p.Close()
	if p.Info != nil && !p.Info.Mode().IsRegular() {
		return nil, direct.NotRegularFile.New("path is not a plain file.")
	}
	mode := os.FileMode(0o666) // the umask applies
	if p.Info != nil {
		mode = 0o600
	}
	if i.st, err = s.stage(t, p, mode); err != nil {
		return nil, t.Fault(err, rel)
	}
	return i, ctx.Err()
}

// Write appends bytes.
func (i *Import) Write(b []byte) (int, error) {
	n, err := i.st.Write(b)
	return n, i.s.host.Fault(err, "")
}

// SHA256 is the hash of the bytes so far, in lower-case hex.
func (i *Import) SHA256() string { return i.st.sha256() }

// Size is how many bytes there are so far.
func (i *Import) Size() int64 { return i.st.size }

// Discard removes what was not committed. It can be called again, and after
// Commit.
func (i *Import) Discard() { i.st.discard() }

// Commit puts the bytes in place, durably. The project's permissions are asked
// again.
func (i *Import) Commit(ctx context.Context) (WriteDirectFileOut, error) {
	t, err := i.s.host.Open(i.project, direct.Write)
	if err != nil {
		return WriteDirectFileOut{}, err
	}
	defer t.Close()
	out := WriteDirectFileOut{SHA256: i.SHA256(), Size: i.Size(), Created: i.expected == "", HostID: t.HostID()}
	err = i.s.locked(ctx, t, i.rel, direct.ToWrite, func(p *direct.Place) error {
		out.Path = p.Path
		if err := i.sameDirectory(p); err != nil {
			return err
		}
		if p.Info == nil {
			if i.expected != "" {
				return HashConflict.New("The file does not exist.")
			}
			return (&replacement{s: i.s, t: t, p: p}).create(i.st)
		}
		r, err := i.s.open(ctx, t, p)
		if err != nil {
			return err
		}
		defer r.close()
		switch {
		case r.sha == out.SHA256 && r.sha != i.expected:
			out.Duplicate = true
			return nil
		case i.expected == "":
			return FileExists.New("path exists already.")
		case i.expected != r.sha:
			return HashConflict.New("The file's content is not the one with expectedSha256.")
		}
		if err := r.writable(); err != nil {
			return err
		}
		return r.commit(ctx, i.st, r.info.Mode().Perm())
	})
	if err != nil {
		return WriteDirectFileOut{}, t.Fault(err, i.rel)
	}
	i.Discard()
	return out, nil
}

// sameDirectory checks that the temporary file is where it can be renamed.
func (i *Import) sameDirectory(p *direct.Place) error {
	now, err := p.Dir.Stat(".")
	if err != nil {
		return err
	}
	then, err := i.st.dir.Stat(".")
	if err != nil {
		return err
	}
	if !os.SameFile(now, then) {
		return direct.FileChanged.New("The directory of path was replaced during the import.")
	}
	return nil
}
