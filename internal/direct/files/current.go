package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"agentrelay/internal/direct"
)

// openFile opens the file at a place. What is not a plain file is refused
// before it is opened: opening a pipe or device can hang or do something.
func openFile(p *direct.Place, flag int) (*os.File, fs.FileInfo, error) {
	switch {
	case p.Info == nil:
		return nil, nil, direct.PathNotFound.New("path names nothing in this project.")
	case p.Info.IsDir():
		return nil, nil, direct.NotRegularFile.New("path is a directory.")
	}
	return openEntry(p.Dir, p.Name, p.Info, flag)
}

// openEntry opens the plain file that info describes, and no other.
func openEntry(dir *os.Root, name string, info fs.FileInfo, flag int) (*os.File, fs.FileInfo, error) {
	if !info.Mode().IsRegular() {
		return nil, nil, direct.NotRegularFile.New("path is not a plain file.")
	}
	f, err := dir.OpenFile(name, flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	now, err := f.Stat()
	if err == nil && direct.Identify(now) != direct.Identify(info) {
		err = direct.FileChanged.New("path was replaced during the call.")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, now, nil
}

// hashFile is the hash of a file's bytes from its start, in lower-case hex.
func hashFile(ctx context.Context, f io.ReaderAt, size int64) (string, error) {
	if size > MaxHash {
		return "", FileTooLarge.New("The file is larger than the 16 GiB that are hashed.")
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, &ctxReader{ctx, io.NewSectionReader(f, 0, MaxHash)}, make([]byte, 256<<10)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// ctxReader ends when its context does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// checkHash returns the lower-case form of a hash argument.
func checkHash(argument, hash string) (string, error) {
	if _, err := hex.DecodeString(hash); err != nil || len(hash) != 2*sha256.Size {
		return "", direct.Invalid(argument, "must be 64 hexadecimal digits")
	}
	return strings.ToLower(hash), nil
}
