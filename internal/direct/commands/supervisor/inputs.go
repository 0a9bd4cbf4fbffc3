package supervisor

import (
	"os"
	"sync"

	"agentrelay/internal/direct/commands/record"
)

// maxWaiting is how many bytes of input may wait for the command to read.
const maxWaiting = 1 << 20

// inputs is the command's stdin. A command that does not read blocks only the
// goroutine that writes.
type inputs struct {
	dir record.Dir

	mu      sync.Mutex
	open    bool // further input is taken
	stored  map[string]record.Input
	waiting int // bytes
	queue   chan item
	file    *os.File
}

// item is something to write; nil text is the end.
type item struct{ text []byte }

// queueLength bounds how many inputs wait, beside their bytes.
const queueLength = 4096

// newInputs is the stdin of a command that has not been executed yet.
func newInputs(dir record.Dir, open bool) *inputs {
	in := &inputs{dir: dir, open: open, stored: map[string]record.Input{}}
	if open {
		in.queue = make(chan item, queueLength+1)
	}
	return in
}

// pipe makes the command's stdin, which the caller closes.
func (in *inputs) pipe() (*os.File, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.queue == nil {
		return os.Open(os.DevNull)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	in.file = w
	go in.write(in.queue, w)
	return r, nil
}

func (in *inputs) write(queue chan item, w *os.File) {
	defer w.Close()
	for it := range queue {
		if it.text == nil {
			return
		}
		_, err := w.Write(it.text)
		in.mu.Lock()
		in.waiting -= len(it.text)
		if err != nil {
			in.open = false // the command closed it or has ended
		}
		in.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// end closes the command's stdin, also while a write blocks.
func (in *inputs) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open = false
	if in.queue != nil {
		close(in.queue)
		in.queue = nil
	}
	if in.file != nil {
		in.file.Close() // a write that blocks ends
	}
}

// add stores an input and hands it to the writer. ok is false when it could not
// be stored, so that nobody knows what a repeat will find.
func (in *inputs) add(i record.Input) (a record.Answer, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if was, ok := in.stored[i.InputID]; ok {
		if was.Fingerprint != i.Fingerprint {
			return record.Answer{Refused: record.InputConflict}, true
		}
		return record.Answer{Input: &was, Duplicate: true}, true
	}
	if !in.open {
		return record.Answer{Refused: record.StdinClosed}, true
	}
	i.State = record.Accepted
	if in.waiting+len(i.Text) > maxWaiting || len(in.queue) >= queueLength {
		i.State = record.Rejected
	}
	if err := in.dir.AddInput(i); err != nil {
		return record.Answer{}, false
	}
	text := i.Text
	i.Text = ""
	in.stored[i.InputID] = i
	if i.State == record.Accepted {
		in.push(text, i.EOF)
	}
	return record.Answer{Input: &i}, true
}

func (in *inputs) push(text string, eof bool) {
	if in.queue == nil {
		return
	}
	if text != "" {
		in.waiting += len(text)
		in.queue <- item{[]byte(text)}
	}
	if eof {
		in.queue <- item{}
		in.open = false
	}
}
