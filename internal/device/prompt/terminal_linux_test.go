package prompt

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"agentrelay/internal/device/approval"
)

// person is somebody in front of a terminal.
type person struct {
	t    *testing.T
	keys *os.File
	term *Terminal

	mu     sync.Mutex
	screen strings.Builder
}

func newPerson(t *testing.T) *person {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	// Sizing it made it block, and what blocks in a read can't be closed.
	fd, err := unix.Dup(int(master.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	master.Close()
	master = os.NewFile(uintptr(fd), "pty")
	p := &person{t: t, keys: master, term: NewTerminal(slave, slave)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.screen.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		slave.Close()
		master.Close()
		<-read
	})
	return p
}

// sees is what is on the screen, line ends as in files.
func (p *person) sees() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ReplaceAll(p.screen.String(), "\r\n", "\n")
}

func (p *person) waitFor(text string) {
	p.t.Helper()
	for until := time.Now().Add(10 * time.Second); !strings.Contains(p.sees(), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			p.t.Fatalf("%q did not appear:\n%s", text, p.sees())
		}
	}
}

func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := p.keys.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// reads waits as long as somebody who reads the question.
func (p *person) reads() { time.Sleep(settle + 3*look) }

func (p *person) ask(a *approval.Approval) (wait func()) {
	done := make(chan error, 1)
	go func() { done <- p.term.Ask(context.Background(), a) }()
	return func() {
		p.t.Helper()
		select {
		case err := <-done:
			if err != nil {
				p.t.Error(err)
			}
		case <-time.After(10 * time.Second):
			p.t.Fatalf("the question stands:\n%s", p.sees())
		}
	}
}

func TestKeys(t *testing.T) {
	for name, c := range map[string]struct {
		keys string
		want approval.Outcome
		says string
	}{
		"yes":       {"y", approval.Outcome{State: approval.Allowed}, "> yes\n"},
		"yes-enter": {"Y\r", approval.Outcome{State: approval.Allowed}, "> yes\n"},
		"enter":     {"\r", approval.Outcome{State: approval.Allowed}, "> yes\n"},
		"no":        {"n", approval.Outcome{State: approval.Denied, Why: "the human said no"}, "> no\n"},
		"always":    {"a", approval.Outcome{State: approval.Allowed, Always: true}, "> always\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t)
			a := approval.New(question(`{"cmd":"curl example.com > /tmp/example"}`))
			wait := p.ask(a)
			p.waitFor("run? ")
			p.reads()
			p.types("x\x1b[A") // no answers
			time.Sleep(2 * look)
			if a.Outcome().State != approval.Pending {
				t.Fatalf("%+v", a.Outcome())
			}
			p.types(c.keys)
			wait()
			p.waitFor(c.says)
			if a.Outcome() != c.want {
				t.Errorf("%+v", a.Outcome())
			}
			if name == "yes" {
				golden(t, "session-yes", p.sees())
			}
		})
	}
}

// TestKeysTypedBeforeDoNotCount, whether a line was ended or not, nor do those of
// somebody who goes on typing.
func TestKeysTypedBeforeDoNotCount(t *testing.T) {
	p := newPerson(t)
	p.types("y\ny")
	time.Sleep(50 * time.Millisecond)
	a := approval.New(question(`{"cmd":"ls"}`))
	wait := p.ask(a)
	p.waitFor("run? ")
	for range 10 {
		p.types("y")
		time.Sleep(60 * time.Millisecond)
	}
	if a.Outcome().State != approval.Pending {
		t.Fatalf("%+v", a.Outcome())
	}
	p.reads()
	p.types("n")
	wait()
	if a.Outcome().State != approval.Denied {
		t.Errorf("%+v", a.Outcome())
	}
}

func TestWithdrawnAndExpiredAreSaid(t *testing.T) {
	p := newPerson(t)
	for cmd, o := range []approval.Outcome{
		{State: approval.Withdrawn, Why: "the caller is gone (cancelled)"}, {State: approval.Expired, Why: "no answer within 1m30s"},
	} {
		a := approval.New(question(fmt.Sprintf(`{"cmd":"sleep %d"}`, cmd)))
		wait := p.ask(a)
		p.waitFor(fmt.Sprintf("sleep %d\n", cmd))
		p.reads()
		if _, err := p.term.Write([]byte("a line of the log\n")); err != nil { // it waits for its turn
			t.Fatal(err)
		}
		a.Decide(o)
		wait()
	}
	p.waitFor("1m30s\na line of the log\n")
	golden(t, "session-withdrawn", p.sees())
}

func TestLongArgumentsMustBeSeen(t *testing.T) {
	p := newPerson(t)
	a := approval.New(question(`{"cmd":"` + strings.Repeat("0123456789", 400) + ` | sh"}`))
	wait := p.ask(a)
	p.waitFor("run? ")
	p.reads()
	p.types("y")
	time.Sleep(2 * look)
	p.types("a")
	time.Sleep(2 * look)
	if a.Outcome().State != approval.Pending {
		t.Fatalf("allowed unseen: %+v", a.Outcome())
	}
	p.types("v")
	p.waitFor("any key for more")
	p.types("q")
	p.waitFor("run? [v=view all/n] > \n") // still
	time.Sleep(2 * look)
	p.types("v")
	for range 2 {
		time.Sleep(3 * look)
		p.types(" ")
	}
	p.waitFor("run? [Y/n/a=always] > ")
	p.types("y")
	wait()
	if a.Outcome().State != approval.Allowed {
		t.Errorf("%+v", a.Outcome())
	}
	p.waitFor("> yes\n")
	golden(t, "session-long", p.sees())
}

// TestOneQuestionAtATime: the second appears when the first is decided, and one that
// was decided meanwhile doesn't.
func TestOneQuestionAtATime(t *testing.T) {
	p := newPerson(t)
	first, gone, last := approval.New(question(`{"cmd":"first"}`)), approval.New(question(`{"cmd":"gone"}`)), approval.New(question(`{"cmd":"last"}`))
	waitFirst := p.ask(first)
	p.waitFor("first")
	waitGone := p.ask(gone)
	time.Sleep(20 * time.Millisecond)
	gone.Decide(approval.Outcome{State: approval.Withdrawn})
	waitLast := p.ask(last)
	p.reads()
	p.types("y")
	waitFirst()
	waitGone()
	p.waitFor("last")
	p.reads()
	p.types("n")
	waitLast()
	if first.Outcome().State != approval.Allowed || last.Outcome().State != approval.Denied || strings.Contains(p.sees(), "gone") {
		t.Errorf("%+v %+v\n%s", first.Outcome(), last.Outcome(), p.sees())
	}
}

func TestATerminalThatIsGone(t *testing.T) {
	p := newPerson(t)
	a := approval.New(question(`{"cmd":"ls"}`))
	done := make(chan error, 1)
	go func() { done <- p.term.Ask(context.Background(), a) }()
	p.waitFor("run? ")
	if p.term.Gone() {
		t.Error("a terminal that is there is gone")
	}
	p.keys.Close()
	select {
	case err := <-done:
		if err == nil || a.Outcome().State != approval.Pending {
			t.Errorf("%v %+v", err, a.Outcome())
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for keys that can't come")
	}
	if !p.term.Gone() {
		t.Error("a terminal that was hung up is there")
	}
}
