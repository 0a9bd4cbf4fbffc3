package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// MaxHello bounds the first line of a gateway, in bytes.
	MaxHello = 4 << 20
	// MaxNoise bounds what a login shell may print before a worker speaks, its
	// first line included, in bytes.
	MaxNoise = 1 << 20
	// magic begins the first line of a worker and of a bulk channel. A nonce
	// follows, for a banner may repeat what it was sent.
	magic = "agent-relay-worker "
)

// ErrNoWorker is the error of a stream that ended, or went on too long, before
// a worker spoke.
var ErrNoWorker = errors.New("no worker answered")

// ErrNoGateway is the error of a first line that no gateway sent.
var ErrNoGateway = errors.New("the first line is not that of a gateway")

// ReadHello reads the first line of a gateway.
func ReadHello(r *bufio.Reader) (Hello, error) {
	raw, err := readLine(r, MaxHello)
	if err != nil {
		return Hello{}, fmt.Errorf("%w: %w", ErrNoGateway, err)
	}
	var h Hello
	if err := json.Unmarshal(raw, &h); err != nil {
		return Hello{}, fmt.Errorf("%w: %w", ErrNoGateway, err)
	}
	return h, nil
}

// WriteHello writes the first line of a gateway.
func WriteHello(w io.Writer, h Hello) error {
	raw, err := line(h)
	if err == nil {
		_, err = w.Write(raw)
	}
	return err
}

// WriteAnswer writes the first line of a worker, or of a bulk channel. It begins
// with a line end, for what was printed before may have none.
func WriteAnswer(w io.Writer, nonce string, v any) error {
	raw, err := line(v)
	if err == nil {
		_, err = w.Write(append([]byte("\n"+magic+nonce+" "), raw...))
	}
	return err
}

// ReadAnswer reads the answer with a nonce into v, past whatever is before it.
func ReadAnswer(r *bufio.Reader, nonce string, v any) error {
	prefix := []byte(magic + nonce + " ")
	for left := MaxNoise; left > 0; {
		raw, err := readLine(r, left)
		left -= len(raw) + 1
		if rest, ok := bytes.CutPrefix(raw, prefix); ok && err == nil {
			if err := json.Unmarshal(rest, v); err != nil {
				return fmt.Errorf("the first line of a worker can't be read: %w", err)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoWorker, err)
		}
	}
	return fmt.Errorf("%w within %d bytes", ErrNoWorker, MaxNoise)
}

var errLongLine = errors.New("the line is too long")

// readLine returns a line without its end. A line that the stream's end cut off
// is an error.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, errLongLine
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
