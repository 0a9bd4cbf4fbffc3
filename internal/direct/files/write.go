package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"unicode/utf8"

	"agentrelay/internal/direct"
)

// WriteDirectFile makes content the whole of a file: of a new one when
// ExpectedSHA256 is nil, else in the place of what has that hash. A repeat finds
// its content in place and answers as the first call did, with Duplicate.
//
// Refusals: invalid_arguments, hash_conflict, file_exists, read_only_file,
// privileged_file, would_lose_bytes, file_too_large, and those of package
// direct.
func (s *Service) WriteDirectFile(ctx context.Context, in WriteDirectFileIn) (WriteDirectFileOut, error) {
	expected, err := checkWrite(in)
	if err != nil {
		return WriteDirectFileOut{}, err
	}
	t, err := s.host.Open(in.ProjectID, direct.Write)
	if err != nil {
		return WriteDirectFileOut{}, err
	}
	defer t.Close()
	access := direct.ToWrite
	if in.CreateParents && expected == "" {
		access = direct.ToCreate
	}
	out := WriteDirectFileOut{SHA256: hashBytes([]byte(in.Content)), Size: int64(len(in.Content)), HostID: t.HostID()}
	err = s.locked(ctx, t, in.Path, access, func(p *direct.Place) error {
		out.Path, out.Created = p.Path, expected == ""
		if p.Info == nil {
			return s.createText(ctx, t, p, in, expected)
		}
		r, err := s.open(ctx, t, p)
		if err != nil {
			return err
		}
		defer r.close()
		perm := permOf(r.info.Mode().Perm(), in.Executable)
		if r.sha == out.SHA256 && perm == r.info.Mode().Perm() && (expected == "" || expected != r.sha) {
			out.Duplicate = true
			return nil
		}
		return r.replaceText(ctx, in, expected, perm)
	})
	if err != nil {
		return WriteDirectFileOut{}, t.Fault(err, in.Path)
	}
	return out, nil
}

// checkWrite returns the expected hash; "" is a new file.
func checkWrite(in WriteDirectFileIn) (expected string, err error) {
	if err := checkText("content", in.Content); err != nil {
		return "", err
	}
	if in.ExpectedSHA256 == nil {
		return "", nil
	}
	return checkHash("expectedSha256", *in.ExpectedSHA256)
}

func checkText(argument, text string) error {
	if len(text) > MaxContent {
		return direct.Invalid(argument, "must have at most 1 MiB of UTF-8; import_direct_file takes larger files")
	}
	if !utf8.ValidString(text) {
		return direct.Invalid(argument, "must be valid UTF-8; import_direct_file takes other bytes")
	}
	return nil
}

// permOf applies the executable argument to permission bits: who may read may
// run.
func permOf(perm fs.FileMode, executable *bool) fs.FileMode {
	switch {
	case executable == nil:
		return perm
	case *executable:
		return perm | perm&0o444>>2
	}
	return perm &^ 0o111
}

func (s *Service) createText(ctx context.Context, t *direct.Tree, p *direct.Place, in WriteDirectFileIn, expected string) error {
	if expected != "" {
		return HashConflict.New("The file does not exist.").WithHint("Pass null as expectedSha256 to create it.")
	}
	mode := fs.FileMode(0o666) // the umask applies
	if in.Executable != nil && *in.Executable {
		mode = 0o777
	}
	st, err := s.stage(t, p, mode)
	if err != nil {
		return err
	}
	defer st.discard()
	if _, err := st.Write([]byte(in.Content)); err != nil {
		return err
	}
	r := &replacement{s: s, t: t, p: p}
	return r.commit(ctx, st, mode)
}

func (r *replacement) replaceText(ctx context.Context, in WriteDirectFileIn, expected string, perm fs.FileMode) error {
	switch {
	case expected == "":
		return FileExists.New("path exists already.")
	case expected != r.sha:
		return HashConflict.New("The file's content is not the one with expectedSha256.")
	}
	if perm == r.info.Mode().Perm() && r.sha == hashBytes([]byte(in.Content)) {
		return nil
	}
	if err := r.writable(); err != nil {
		return err
	}
	if bytes.ContainsRune([]byte(in.Content), utf8.RuneError) {
		valid, err := validUTF8(ctx, r.old)
		if err != nil {
			return err
		}
		if !valid {
			return WouldLoseBytes.New("content has U+FFFD, the sign for unreadable bytes, and the file has bytes that are not UTF-8: they would be lost.")
		}
	}
	return r.put(ctx, []byte(in.Content), perm)
}

// put replaces the file's content.
func (r *replacement) put(ctx context.Context, content []byte, perm fs.FileMode) error {
	st, err := r.s.stage(r.t, r.p, 0o600)
	if err != nil {
		return err
	}
	defer st.discard()
	if _, err := st.Write(content); err != nil {
		return err
	}
	return r.commit(ctx, st, perm)
}

// validUTF8 reports whether a whole file is UTF-8.
func validUTF8(ctx context.Context, f *os.File) (bool, error) {
	buf, at, kept := make([]byte, 256<<10), int64(0), 0
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		n, err := f.ReadAt(buf[kept:], at)
		at += int64(n)
		n += kept
		whole := n - incomplete(buf[:n])
		if !utf8.Valid(buf[:whole]) {
			return false, nil
		}
		kept = copy(buf, buf[whole:n])
		if err != nil {
			if errors.Is(err, io.EOF) {
				return kept == 0, nil
			}
			return false, err
		}
	}
}

// incomplete is how many bytes at the end of b begin a character whose rest is
// missing.
func incomplete(b []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
