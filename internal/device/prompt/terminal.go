package prompt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"agentrelay/internal/device/approval"
)

// Terminal asks at a terminal, one question at a time. As a writer it shows what the
// program has to say between the questions.
type Terminal struct {
	in  *os.File
	out io.Writer
	// quiet is how long no key may have been pressed before one counts.
	quiet time.Duration

	turn sync.Mutex // held while a question is on the screen

	mu     sync.Mutex
	asking bool
	later  bytes.Buffer // what came meanwhile
}

// settle is the time after a question has appeared in which nobody can have read it.
const settle = 300 * time.Millisecond

// look is how often a pending question looks for a decision made elsewhere.
const look = 50 * time.Millisecond

// maxLater bounds what is kept to be said after a question, in bytes.
const maxLater = 64 << 10

// NewTerminal uses a terminal: in must be one.
func NewTerminal(in *os.File, out io.Writer) *Terminal {
	return &Terminal{in: in, out: out, quiet: settle}
}

// Write shows what isn't a question, after the one that is on the screen.
func (t *Terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking {
		if t.later.Len() < maxLater {
			t.later.Write(p)
		}
		return len(p), nil
	}
	return t.out.Write(p)
}

// Gone reports whether the terminal was hung up, as when its window was closed.
func (t *Terminal) Gone() bool {
	_, err := unix.IoctlGetTermios(int(t.in.Fd()), getTermios)
	return err != nil
}

// Ask shows a question and decides it by a key, unless somebody else does before.
// It returns when the approval is decided, or at the end of ctx.
func (t *Terminal) Ask(ctx context.Context, a *approval.Approval) error {
	t.turn.Lock()
	defer t.turn.Unlock()
	if a.Outcome().State != approval.Pending || ctx.Err() != nil {
		return nil // it was decided while another question was on the screen
	}
	restore, err := t.begin()
	if err != nil {
		return err
	}
	defer restore()
	columns, height, err := term.GetSize(int(t.in.Fd()))
	if err != nil || columns <= 0 {
		columns, height = 80, 24
	}
	s := render(a.Question, columns)
	shown := a.Question.Hash()
	t.say("\n" + strings.Join(s.rows, "\n") + "\n" + ask(s))
	return t.answer(ctx, a, shown, &s, max(height-2, 5))
}

func ask(s screen) string {
	if s.all != nil {
		return "run? [v=view all/n] > "
	}
	return "run? [Y/n/a=always] > "
}

// begin takes the terminal: keys come one by one and are not echoed, and what was
// typed before is thrown away, a line without its end too.
func (t *Terminal) begin() (func(), error) {
	fd := int(t.in.Fd())
	before, err := unix.IoctlGetTermios(fd, getTermios)
	if err != nil {
		return nil, fmt.Errorf("the terminal is gone: %w", err)
	}
	now := *before
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 0, 0
	if err := unix.IoctlSetTermios(fd, setTermiosFlush, &now); err != nil {
		return nil, fmt.Errorf("the terminal can't be used: %w", err)
	}
	t.mu.Lock()
	t.asking = true
	t.mu.Unlock()
	return func() {
		_ = unix.IoctlSetTermios(fd, setTermiosFlush, before) // nothing can be done about a terminal that is gone
		t.mu.Lock()
		defer t.mu.Unlock()
		t.asking = false
		_, _ = t.out.Write(t.later.Bytes())
		t.later.Reset()
	}, nil
}

func (t *Terminal) say(text string) { _, _ = io.WriteString(t.out, text) }

// answer reads keys until the question is decided.
func (t *Terminal) answer(ctx context.Context, a *approval.Approval, shown string, s *screen, page int) error {
	calm := time.Now().Add(t.quiet) // from when on a key counts
	for ready := false; ; {
		if o := a.Outcome(); o.State != approval.Pending {
			t.say(verdict(o))
			return nil
		}
		if ctx.Err() != nil {
			t.say("\n")
			return nil
		}
		key, pressed, err := t.key(look)
		if err != nil {
			return err
		}
		if !pressed {
			ready = ready || time.Now().After(calm)
			continue
		}
		if !ready && time.Now().Before(calm) {
			calm = time.Now().Add(t.quiet) // somebody is typing something else
			continue
		}
		ready = true
		switch {
		case s.all != nil && (key == 'v' || key == 'V'):
			if t.page(ctx, a, s.all, page) {
				s.all = nil // all was seen
			}
			if a.Outcome().State == approval.Pending {
				t.say("\n" + ask(*s))
			}
		case key == 'n' || key == 'N':
			o, _ := a.Decide(approval.Outcome{State: approval.Denied, Why: "the human said no"})
			t.say(verdict(o))
			return nil
		case s.all == nil && (key == 'y' || key == 'Y' || key == '\n' || key == '\r'):
			o, _ := a.Allow(shown, false)
			t.say(verdict(o))
			return nil
		case s.all == nil && (key == 'a' || key == 'A'):
			o, _ := a.Allow(shown, true)
			t.say(verdict(o))
			return nil
		}
	}
}

// page shows everything, a screen at a time, and reports whether the end was reached.
func (t *Terminal) page(ctx context.Context, a *approval.Approval, all []string, height int) bool {
	t.say("\n")
	for from := 0; from < len(all); from += height {
		to := min(from+height, len(all))
		t.say(strings.Join(all[from:to], "\n") + "\n")
		if to == len(all) {
			return true
		}
		t.say(fmt.Sprintf("-- rows %d to %d of %d, any key for more, q to go back -- ", from+1, to, len(all)))
		for {
			if a.Outcome().State != approval.Pending || ctx.Err() != nil {
				return false
			}
			key, pressed, err := t.key(look)
			if err != nil || pressed && (key == 'q' || key == 'Q') {
				return false
			}
			if pressed {
				break
			}
		}
		t.say("\n")
	}
	return true
}

// verdict is what the screen says at the end.
func verdict(o approval.Outcome) string {
	switch {
	case o.State == approval.Allowed && o.Always:
		return "always\n"
	case o.State == approval.Allowed:
		return "yes\n"
	case o.State == approval.Denied && o.Why == "the human said no":
		return "no\n"
	case o.State == approval.Withdrawn:
		return "\n  withdrawn, nothing was run: " + line(o.Why, 100) + "\n"
	case o.State == approval.Expired:
		return "\n  denied, nothing was run: " + line(o.Why, 100) + "\n"
	}
	return "\n  " + o.State.String() + ", nothing was run: " + line(o.Why, 100) + "\n"
}

// key waits a moment for a key. Bytes after the first of a burst, as of an arrow
// key or a paste, are dropped with it: they are no answer.
func (t *Terminal) key(within time.Duration) (byte, bool, error) {
	fd := int(t.in.Fd())
	var set unix.FdSet
	set.Set(fd)
	timeout := unix.NsecToTimeval(within.Nanoseconds())
	n, err := unix.Select(fd+1, &set, nil, nil, &timeout)
	if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("the terminal is gone: %w", err)
	}
	var b [256]byte
	n, err = unix.Read(fd, b[:])
	switch {
	case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
		return 0, false, nil
	case err != nil || n == 0: // readable, and nothing there: it was hung up
		return 0, false, errors.New("the terminal is gone")
	case n == 2 && (b[1] == '\n' || b[1] == '\r'):
		return b[0], true, nil // a key and Enter
	case n > 1:
		return 0, true, nil
	}
	return b[0], true, nil
}
