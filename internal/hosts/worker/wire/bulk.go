package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"agentrelay/internal/direct/transfers"
)

// A bulk channel is one connection to the worker's socket. The gateway writes a
// [Request] as a line, the worker answers with [WriteAnswer]. Content is frames:
// four bytes with a length, most significant first, and that many bytes. The
// length 0 ends it, and a line with a [Trailer] follows.

// The operations of a [Request].
const (
	OpOpen  = "open"  // answered by Opened and content
	OpPlace = "place" // content follows the request; answered by PlaceAnswer
	// OpRetire asks the worker to end, when it has finished what it is changing.
	// It is answered by an empty object, and comes from a worker that is to take
	// its place.
	OpRetire = "retire"
)

// Request is the first line of a bulk channel.
type Request struct {
	Op    string `json:"op"`
	Nonce string `json:"nonce"` // as in Hello
	// ProjectID and Path are of OpOpen.
	ProjectID string `json:"projectId,omitempty"`
	Path      string `json:"path,omitempty"`
	// Placement is of OpPlace.
	Placement *transfers.Placement `json:"placement,omitempty"`
}

// Opened answers OpOpen.
type Opened struct {
	Path  string   `json:"path"`
	Size  int64    `json:"size"`
	Error *Failure `json:"error,omitempty"`
}

// PlaceAnswer answers OpPlace, and [SettleMethod].
type PlaceAnswer struct {
	Placed transfers.Placed `json:"placed"`
	OK     bool             `json:"ok,omitempty"` // of SettleMethod: it took effect
	Error  *Failure         `json:"error,omitempty"`
}

// Trailer stands behind content.
type Trailer struct {
	// SHA256 is that of the content, in lower-case hexadecimal digits.
	SHA256 string `json:"sha256,omitempty"`
	// Error is why the content is not whole.
	Error *Failure `json:"error,omitempty"`
}

const (
	// MaxFrame bounds a frame.
	MaxFrame = 1 << 20
	// FrameSize is how long frames are made.
	FrameSize = 256 << 10
	maxLine   = 64 << 10
)

// ErrCutOff is the error of content whose end never came.
var ErrCutOff = errors.New("the content was cut off")

// ReadRequest reads the first line of a bulk channel.
func ReadRequest(r *bufio.Reader) (q Request, err error) {
	raw, err := readLine(r, maxLine)
	if err == nil {
		err = json.Unmarshal(raw, &q)
	}
	return q, err
}

// WriteRequest writes the first line of a bulk channel.
func WriteRequest(w io.Writer, q Request) error {
	raw, err := line(q)
	if err == nil {
		_, err = w.Write(raw)
	}
	return err
}

// Writer writes content. Its methods are called by one goroutine.
type Writer struct {
	w     io.Writer
	frame []byte // four bytes for the length, then content
}

// NewWriter writes content to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w, frame: make([]byte, 4, 4+FrameSize)}
}

// ReadFrom implements [io.ReaderFrom]: it sends a frame for each read until r
// ends.
func (w *Writer) ReadFrom(r io.Reader) (sent int64, err error) {
	for {
		n, err := r.Read(w.frame[4:cap(w.frame)])
		if n > 0 {
			frame := w.frame[:4+n]
			binary.BigEndian.PutUint32(frame, uint32(n))
			if _, err := w.w.Write(frame); err != nil {
				return sent, &SendError{err}
			}
			sent += int64(n)
		}
		if err == io.EOF {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
}

// SendError is an error of the channel, not of the content.
type SendError struct{ cause error }

// Error is for logs.
func (e *SendError) Error() string { return "sending content: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *SendError) Unwrap() error { return e.cause }

// End writes the end of the content.
func (w *Writer) End(t Trailer) error {
	raw, err := line(t)
	if err == nil {
		_, err = w.w.Write(append(make([]byte, 4), raw...))
	}
	if err != nil {
		return &SendError{err}
	}
	return nil
}

// Reader reads content. It ends with [io.EOF] only behind a trailer without an
// error; what was cut off is [ErrCutOff].
type Reader struct {
	r    *bufio.Reader
	left int // of the frame
	end  error
	// Trailer is what stood behind the content, once it has been read.
	Trailer Trailer
}

// NewReader reads content from r.
func NewReader(r *bufio.Reader) *Reader { return &Reader{r: r} }

// Read implements [io.Reader].
func (r *Reader) Read(b []byte) (int, error) {
	if r.end != nil {
		return 0, r.end
	}
	if r.left == 0 {
		if err := r.next(); err != nil {
			r.end = err
			return 0, err
		}
	}
	n, err := r.r.Read(b[:min(len(b), r.left)])
	r.left -= n
	if err != nil {
		r.end = fmt.Errorf("%w: %w", ErrCutOff, notEnd(err))
	}
	return n, r.end
}

// next reads the head of a frame.
func (r *Reader) next() error {
	var head [4]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return fmt.Errorf("%w: %w", ErrCutOff, notEnd(err))
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return fmt.Errorf("%w: a frame of %d bytes", ErrCutOff, n)
	}
	if r.left = int(n); n > 0 {
		return nil
	}
	raw, err := readLine(r.r, maxLine)
	if err == nil {
		err = json.Unmarshal(raw, &r.Trailer)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrCutOff, notEnd(err))
	case r.Trailer.Error != nil:
		return r.Trailer.Error.Err()
	}
	return io.EOF
}

// notEnd keeps a cause from passing for the end of the content.
func notEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
