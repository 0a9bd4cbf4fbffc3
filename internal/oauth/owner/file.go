package owner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxFile is the longest owner file in bytes.
const maxFile = 8 << 10

// Password checks tries against the owner's password file. It is safe for
// concurrent use.
type Password struct {
	path string
	busy chan struct{} // holds one token while a hash is computed
}

// LoadPassword checks the owner file at path and returns a Password that reads
// it again at every try, so that a new password holds at once. The file is
// {"ownerTokenHash": "$argon2id$…"} or {"ownerToken": "…"}, and nobody but its
// user may have access to it: the error says which chmod to run.
func LoadPassword(path string) (*Password, error) {
	if _, err := readFile(path); err != nil {
		return nil, err
	}
	return &Password{path: path, busy: make(chan struct{}, 1)}, nil
}

// Verify reports whether pw is the owner's password; white space around it does
// not count. One try is hashed at a time, and the others wait for as long as
// ctx lives. The error is ctx's, or trouble with the file, and then nothing is
// known about pw.
func (p *Password) Verify(ctx context.Context, pw string) (bool, error) {
	if len(pw) > MaxPassword {
		return false, nil
	}
	select {
	case p.busy <- struct{}{}:
		defer func() { <-p.busy }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	secret, err := readFile(p.path)
	if err != nil {
		return false, err
	}
	return secret.matches(pw), nil
}

// readFile returns what tries are compared with.
func readFile(path string) (interface{ matches(pw string) bool }, error) {
	data, err := readPrivate(path)
	if err != nil {
		return nil, fmt.Errorf("the owner file: %w", err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil || len(members) != 1 {
		return nil, fmt.Errorf(`the owner file %s must be {"ownerTokenHash": "…"} or {"ownerToken": "…"} and nothing else; gateway owner reset-password writes a new one`, path)
	}
	for name, raw := range members {
		var value string
		if err := json.Unmarshal(raw, &value); err != nil {
			return nil, fmt.Errorf("the owner file %s: %.40q must be a string", path, name)
		}
		switch name {
		case "ownerTokenHash":
			h, err := parsePHC(value)
			if err != nil {
				return nil, fmt.Errorf("the owner file %s: ownerTokenHash: %w", path, err)
			}
			return h, nil
		case "ownerToken":
			if err := checkLength(value); err != nil {
				return nil, fmt.Errorf("the owner file %s: ownerToken: %w", path, err)
			}
			return plain(value), nil
		}
		return nil, fmt.Errorf("the owner file %s has the unknown key %.40q; it must be ownerTokenHash or ownerToken", path, name)
	}
	panic("unreachable: the map has one member")
}

// readPrivate reads a small regular file that only its user can read.
func readPrivate(path string) ([]byte, error) {
	// O_NONBLOCK, for else opening a pipe would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, others can use it: run chmod 600 %s", path, mode, path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxFile)
	}
	return bytes.TrimSpace(data), err
}

// WritePassword writes the hash of pw to an owner file at path, mode 0600. The
// file appears whole or not at all, and is on disk when WritePassword returns.
// Without overwrite an existing file is kept and the error is [fs.ErrExist].
func WritePassword(path, pw string, rand io.Reader, overwrite bool) error {
	hash, err := HashPassword(pw, rand)
	if err != nil {
		return err
	}
	data, err := json.Marshal(map[string]string{"ownerTokenHash": hash})
	if err != nil {
		return err
	}
	if err := writePrivate(path, append(data, '\n'), overwrite); err != nil {
		return fmt.Errorf("writing the owner file: %w", err)
	}
	return nil
}

func writePrivate(path string, data []byte, overwrite bool) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if rmErr := os.Remove(f.Name()); !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	put := os.Link // fails when path exists, unlike a rename
	if overwrite {
		put = os.Rename
	}
	if err := put(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
