package transfers

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/attributes"
	"agentrelay/internal/direct/files"
)

// Placement is content on its way to a path of a project.
type Placement struct {
	// ID names the placement for [Service.Settle]: 24 lower-case hexadecimal
	// digits that no other one has.
	ID        string `json:"id"`
	ProjectID string `json:"projectId"`
	Path      string `json:"path"`
	// ExpectedSHA256 is what the file has now, 64 lower-case hexadecimal digits;
	// nil creates it.
	ExpectedSHA256 *string `json:"expectedSha256"`
	// Size and SHA256 are of the content; other content is refused.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Placed is where content came to lie.
type Placed struct {
	Path    string `json:"path"` // project-relative, behind all links
	Created bool   `json:"created"`
}

var (
	// ErrWithdrawn is the error of a placement that was already answered as not
	// made.
	ErrWithdrawn = errors.New("the placement was withdrawn")
	// ErrUnsettled is the error of a placement that may have taken effect.
	// [Service.Settle] tells later.
	ErrUnsettled = errors.New("it can't be told at present whether the placement took effect")
)

// Check refuses a placement that would be refused if its content were there.
// Size and SHA256 are not looked at.
func (s *Service) Check(ctx context.Context, in Placement) error {
	t, p, err := s.find(in)
	if err != nil {
		return err
	}
	defer t.Close()
	defer p.Close()
	old, err := expect(ctx, p, in.ExpectedSHA256)
	old.close()
	return t.Fault(err, in.Path)
}

// Place puts content in the place of a file, or creates the file. It is on disk
// when Place returns. An error means that nothing was changed, unless it is
// [ErrUnsettled]. Called again with the id of a placement that took effect, it
// answers as before.
//
// Refusals: invalid_arguments, hash_conflict, file_exists, read_only_file,
// privileged_file, file_too_large, transfer_corrupted, and those of package
// direct.
func (s *Service) Place(ctx context.Context, in Placement, content io.Reader) (Placed, error) {
	release, err := s.records.take(in.ID)
	if err != nil {
		return Placed{}, err
	}
	defer release()
	rec, found, err := s.records.read(in.ID)
	switch {
	case err != nil:
		return Placed{}, err
	case rec.Step == placed:
		return rec.answer(), nil
	case found:
		return Placed{}, ErrWithdrawn
	}
	t, p, err := s.find(in)
	if err != nil {
		return Placed{}, err
	}
	defer t.Close()
	defer p.Close()
	dir, err := p.Dir.Stat(".")
	if err != nil {
		return Placed{}, t.Fault(err, in.Path)
	}
	rec = record{Step: staging, Dir: filepath.Join(t.Dir(), filepath.Dir(p.Path)), DirID: identity(dir), Temp: temporaryName(), Name: p.Name, Path: p.Path, Created: in.ExpectedSHA256 == nil}
	if err := s.records.write(in.ID, rec); err != nil {
		return Placed{}, err
	}
	w := &placement{s: s, in: in, t: t, p: p, rec: rec}
	if err := w.run(ctx, content); err != nil {
		return w.failed(t.Fault(err, in.Path))
	}
	return rec.answer(), nil
}

// failed clears up behind a placement that went wrong. One that went wrong only
// after the content was in its place has taken effect.
func (w *placement) failed(cause error) (Placed, error) {
	if w.temp != nil {
		w.temp.Close()
	}
	out, done, err := w.s.settle(w.in.ID)
	switch {
	case err != nil && w.rec.Step == staging: // nothing was swapped yet
		w.s.log.Warn("what a failed placement left is cleared later", "placement", w.in.ID, "error", err)
	case err != nil:
		return Placed{}, errors.Join(ErrUnsettled, cause, err)
	case done:
		w.s.log.Warn("a placement took effect although a later step failed", "placement", w.in.ID, "error", cause)
		return out, nil
	}
	return Placed{}, cause
}

func (s *Service) find(in Placement) (*direct.Tree, *direct.Place, error) {
	t, err := s.host.Open(in.ProjectID, direct.Write)
	if err != nil {
		return nil, nil, err
	}
	p, err := t.Find(in.Path, direct.ToWrite)
	if err != nil {
		t.Close()
		return nil, nil, err
	}
	return t, p, nil
}

// temporaryName has the form that lists and searches leave out.
func temporaryName() string {
	id := make([]byte, 8)
	rand.Read(id)
	return ".agent-relay-" + hex.EncodeToString(id) + ".tmp"
}

// target is the file that is replaced; its file is nil when it is created.
type target struct {
	file *os.File
	info fs.FileInfo
}

func (t target) close() {
	if t.file != nil {
		t.file.Close()
	}
}

// expect checks that what is at a place is what the caller expects and may be
// replaced.
func expect(ctx context.Context, p *direct.Place, expected *string) (target, error) {
	switch {
	case p.Info == nil && expected != nil:
		return target{}, files.HashConflict.New("The file does not exist.").WithHint("Pass null as expectedSha256 to create it, with a new requestId.")
	case p.Info == nil:
		return target{}, nil
	case !p.Info.Mode().IsRegular():
		return target{}, direct.NotRegularFile.New("path is not a plain file.")
	case expected == nil:
		return target{}, files.FileExists.New("path exists already.")
	}
	f, info, err := openPlain(p, os.O_RDONLY)
	if err != nil {
		return target{}, err
	}
	old := target{f, info}
	if info.Size() > files.MaxHash {
		old.close()
		return target{}, files.FileTooLarge.New("The file is larger than the 16 GiB that are hashed.").
			WithHint("Remove the file with a command of the project, then import with null as expectedSha256 and a new requestId.")
	}
	sha, err := hashOf(ctx, f)
	if err == nil && sha != *expected {
		err = files.HashConflict.New("The file's content is not the one with expectedSha256.")
	}
	if err == nil {
		err = files.Writable(f, info, func() (*os.File, fs.FileInfo, error) { return openPlain(p, os.O_WRONLY) })
	}
	if err != nil {
		old.close()
		return target{}, err
	}
	return old, nil
}

// block is how much is held in memory of a file.
const block = 1 << 20

func hashOf(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.CopyBuffer(h, &within{ctx, r}, make([]byte, block)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// within ends reading when its context ends.
type within struct {
	ctx context.Context
	r   io.Reader
}

func (r *within) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// placement is one Place at work.
type placement struct {
	s    *Service
	in   Placement
	t    *direct.Tree
	p    *direct.Place
	rec  record
	temp *os.File
}

func (w *placement) run(ctx context.Context, content io.Reader) error {
	old, err := expect(ctx, w.p, w.in.ExpectedSHA256)
	if err != nil {
		return err
	}
	defer old.close()
	err = w.stage(ctx, old, content)
	if errors.Is(err, attributes.ErrCannotKeep) || err == nil && old.file != nil && direct.Links(old.info) > 1 {
		return w.overwrite(ctx)
	}
	if err != nil {
		return err
	}
	w.s.crash("staged")
	if err := w.replace(ctx, old); err != nil {
		return err
	}
	return w.finished()
}

// replace swaps the new file in.
func (w *placement) replace(ctx context.Context, old target) error {
	dir, err := w.p.Dir.Stat(".")
	if err != nil {
		return err
	}
	release, err := w.s.files.Lock(ctx, direct.Identify(dir))
	if err != nil {
		return err
	}
	defer release()
	if err := w.arm(old); err != nil {
		return err
	}
	w.s.crash("armed")
	if err := w.swap(old); err != nil {
		return err
	}
	w.s.crash("swapped")
	return direct.SyncDir(w.p.Dir)
}

// finished records that the placement took effect.
func (w *placement) finished() error {
	w.temp.Close()
	if err := w.s.records.write(w.in.ID, record{Step: placed, Path: w.rec.Path, Created: w.rec.Created}); err != nil {
		return err
	}
	w.s.crash("placed")
	return nil
}

// overwrite has the file tools write the content into the file itself, which
// keeps what a new file would not have. They undo what a crash has torn.
func (w *placement) overwrite(ctx context.Context) error {
	i, err := w.s.files.Stage(ctx, w.in.ProjectID, w.in.Path, w.in.ExpectedSHA256)
	if err != nil {
		return err
	}
	defer i.Discard()
	if _, err := io.CopyBuffer(struct{ io.Writer }{i}, &within{ctx, io.NewSectionReader(w.temp, 0, w.in.Size)}, make([]byte, block)); err != nil {
		return err
	}
	if err := w.p.Dir.Remove(w.rec.Temp); err != nil {
		return err
	}
	w.rec.Step, w.rec.Temp, w.rec.Old, w.rec.Staged = armed, "", *w.in.ExpectedSHA256, w.in.SHA256
	if err := w.s.records.write(w.in.ID, w.rec); err != nil {
		return err
	}
	w.s.crash("armed")
	if _, err := i.Commit(ctx); err != nil {
		return err
	}
	w.s.crash("swapped")
	return w.finished()
}

// stage writes the content to a temporary file beside its target.
func (w *placement) stage(ctx context.Context, old target, content io.Reader) error {
	mode := fs.FileMode(0o666) // the umask applies
	if old.file != nil {
		mode = 0o600
	}
	var err error
	if w.temp, err = w.p.Dir.OpenFile(w.rec.Temp, os.O_CREATE|os.O_EXCL|os.O_RDWR, mode); err != nil {
		return err
	}
	w.s.crash("staging")
	h := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(w.temp, h), io.LimitReader(&within{ctx, content}, w.in.Size+1), make([]byte, block))
	if err != nil {
		return err
	}
	if n != w.in.Size || hex.EncodeToString(h.Sum(nil)) != strings.ToLower(w.in.SHA256) {
		return Corrupted.New("What arrived on the host is not what was sent.")
	}
	if old.file != nil {
		if err := attributes.Adopt(w.temp, old.file, old.info, old.info.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := w.temp.Sync(); err != nil {
		return err
	}
	return direct.SyncDir(w.p.Dir) // the name too, for its absence has a meaning
}

// arm records the two files that are about to be swapped.
func (w *placement) arm(old target) error {
	info, err := w.temp.Stat()
	if err != nil {
		return err
	}
	w.rec.Step, w.rec.Staged = armed, look(info)
	if old.file != nil {
		w.rec.Old = look(old.info)
	}
	return w.s.records.write(w.in.ID, w.rec)
}

// swap gives the new file the name, unless something else than the caller
// expects stands there by now.
func (w *placement) swap(old target) error {
	if old.file == nil {
		return w.create()
	}
	info, err := w.p.Dir.Lstat(w.p.Name)
	if err != nil {
		return err
	}
	if !same(info, old.info) || info.Mode() != old.info.Mode() || direct.Links(info) > 1 {
		return overtaken()
	}
	err = exchange(w.p.Dir, w.rec.Temp, w.p.Name)
	if errors.Is(err, errors.ErrUnsupported) { // only here can another program come in between unnoticed
		return w.p.Dir.Rename(w.rec.Temp, w.p.Name)
	}
	if err != nil {
		return err
	}
	if info, err = w.p.Dir.Lstat(w.rec.Temp); err == nil && !same(info, old.info) {
		err = overtaken()
	}
	if err != nil {
		return errors.Join(err, exchange(w.p.Dir, w.rec.Temp, w.p.Name))
	}
	return w.p.Dir.Remove(w.rec.Temp)
}

func overtaken() error {
	return files.HashConflict.New("The file was changed by something else during the call.")
}

func (w *placement) create() error {
	err := renameNew(w.p.Dir, w.rec.Temp, w.p.Name)
	if errors.Is(err, errors.ErrUnsupported) {
		if err = w.p.Dir.Link(w.rec.Temp, w.p.Name); err == nil {
			return w.p.Dir.Remove(w.rec.Temp)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return files.FileExists.New("path exists already.")
	}
	return err
}
