// Package sealing keeps secrets that must be used again, such as the signing
// keys of webhooks, unreadable in the database.
//
// It owns one key file beside the database and the form of a sealed box. It
// promises that the key is 32 random bytes in a file of mode 0600 that is on
// disk before the first box is made and is never replaced, that a box opens only
// with the key and the context it was sealed with, and that a missing, damaged
// or foreign key is told apart and answered with what to do. It does not protect
// against somebody who can read the key file: a copy of the database alone is
// what tells nothing. What to do when the key is lost for good is for those who
// keep boxes: they know how to get new secrets.
package sealing

import (
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/crypto/chacha20poly1305"
)

// FileName is the key's name in the state directory.
const FileName = "sealing.key"

const (
	keySize = chacha20poly1305.KeySize
	// version is the first byte of a box; the key's fingerprint and the nonce
	// follow.
	version         = 1
	fingerprintSize = 8
	headerSize      = 1 + fingerprintSize + chacha20poly1305.NonceSizeX
)

// MissingError says that boxes exist but the key file does not.
type MissingError struct{ File string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("the key file %s is missing, and the database holds secrets that only it can open: put it back from the backup that the database is from", e.File)
}

// DamagedError says that the key file can't be a key, or that others can use it.
type DamagedError struct {
	File string
	// Problem says what is wrong and what to do, as a clause.
	Problem string
}

func (e *DamagedError) Error() string { return fmt.Sprintf("the key file %s %s", e.File, e.Problem) }

var (
	// ErrOtherKey means that a box was sealed with another key than this one:
	// the database and the key file are from different backups.
	ErrOtherKey = errors.New("sealed with another key: the database and its key file " + FileName + " do not belong together, put back the pair from one backup")
	// ErrBroken means that a box was changed, or belongs to another context.
	ErrBroken = errors.New("the sealed secret is damaged or belongs to something else")
)

// Key seals and opens. It is safe for concurrent use.
type Key struct {
	aead        cipher.AEAD
	fingerprint [fingerprintSize]byte
}

// Load reads the key of a state directory. It fails with a [*MissingError] when
// there is none and with a [*DamagedError] when it can't be used.
func Load(dir string) (*Key, error) {
	path := filepath.Join(dir, FileName)
	raw, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &MissingError{path}
	}
	if err != nil {
		return nil, err
	}
	return newKey(raw)
}

// LoadOrCreate is [Load] for a state directory that holds no box yet: without a
// key file it makes one. Of two callers at once both get the same key.
func LoadOrCreate(dir string) (*Key, error) {
	var missing *MissingError
	key, err := Load(dir)
	if !errors.As(err, &missing) {
		return key, err
	}
	if err := create(missing.File); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making the key file: %w", err)
	}
	return Load(dir)
}

// Seal makes a box of plain that opens only with the same context, which names
// what the secret belongs to and is not secret itself.
func (k *Key) Seal(plain []byte, context string) []byte {
	box := make([]byte, headerSize, headerSize+len(plain)+k.aead.Overhead())
	box[0] = version
	copy(box[1:], k.fingerprint[:])
	nonce := box[1+fingerprintSize : headerSize]
	rand.Read(nonce) // never fails
	return k.aead.Seal(box, nonce, plain, []byte(context))
}

// Open returns what [Key.Seal] was given. It fails with [ErrOtherKey] or
// [ErrBroken].
func (k *Key) Open(box []byte, context string) ([]byte, error) {
	switch {
	case len(box) < headerSize+k.aead.Overhead() || box[0] != version:
		return nil, ErrBroken
	case [fingerprintSize]byte(box[1:]) != k.fingerprint:
		return nil, ErrOtherKey
	}
	plain, err := k.aead.Open(nil, box[1+fingerprintSize:headerSize], box[headerSize:], []byte(context))
	if err != nil {
		return nil, ErrBroken
	}
	return plain, nil
}

func newKey(raw []byte) (*Key, error) {
	aead, err := chacha20poly1305.NewX(raw)
	if err != nil {
		return nil, fmt.Errorf("using the key: %w", err)
	}
	sum := sha256.Sum256(append([]byte("agent-relay sealing key\x00"), raw...))
	return &Key{aead: aead, fingerprint: [fingerprintSize]byte(sum[:])}, nil
}

// read returns the key of a file that nobody but its user can read.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, &DamagedError{path, "is a link: put the file itself there"}
	}
	if err != nil {
		return nil, fmt.Errorf("opening the key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the key file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, &DamagedError{path, "is not a regular file: put the file from your backup there"}
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, &DamagedError{path, fmt.Sprintf("has mode %04o, others can use it: run chmod 600 %s", mode, path)}
	}
	raw, err := io.ReadAll(io.LimitReader(f, keySize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the key file: %w", err)
	}
	if len(raw) != keySize {
		return nil, &DamagedError{path, fmt.Sprintf("is not %d bytes long: put the file from your backup there", keySize)}
	}
	return raw, nil
}

// create puts a new key at path, whole or not at all. It fails with
// [fs.ErrExist] when something is there.
func create(path string) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+FileName+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	raw := make([]byte, keySize)
	rand.Read(raw) // never fails
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil { // unlike a rename, never over another
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
