package worker

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/wire"
	"agentrelay/internal/tool"
)

// session is one worker, from its first line to its end.
type session struct {
	c       *Client
	link    Transport
	process *Process
	input   *input // of the process
	mcp     *mcp.ClientSession
	bulk    string // its socket
	worker  hosts.Worker

	renewed bool // another one takes its place; guarded by c.mu

	lost     chan struct{} // closed when no answer will come any more
	loseOnce sync.Once
	said     complaint
	readers  sync.WaitGroup
}

// start starts a worker and greets it.
func (c *Client) start(ctx context.Context, link Transport) (_ *session, err error) {
	process, err := link.Exec(ctx, c.o.Command("worker"))
	if err != nil {
		return nil, hosts.Unavailable.Newf("The worker on %s could not be started.", c.o.Name).Because(err)
	}
	s := &session{c: c, link: link, process: process, lost: make(chan struct{})}
	s.input = &input{w: process.Stdin}
	s.readers.Go(func() { s.said.read(process.Stderr, c.o.Log) })
	// Closing the process is what ends reading and writing.
	stop := context.AfterFunc(ctx, func() { _ = process.Close() })
	defer func() {
		stop()
		if err != nil {
			_ = process.Close()
			s.readers.Wait()
		}
	}()
	out := bufio.NewReaderSize(process.Stdout, 64<<10)
	reply, err := s.greet(out)
	if err != nil {
		return nil, c.notStarted(ctx, process, err)
	}
	reply.Version = tool.Shown(reply.Version, maxShown)
	if err := c.accept(reply); err != nil {
		return nil, err
	}
	s.bulk = reply.Bulk
	s.worker = hosts.Worker{Version: reply.Version, Outdated: reply.Protocol < c.o.protocol}
	client := mcp.NewClient(&mcp.Implementation{Name: "agent-relay", Version: c.o.Version}, &mcp.ClientOptions{
		Logger: slog.New(slog.DiscardHandler), Capabilities: &mcp.ClientCapabilities{},
	})
	for _, method := range []string{wire.CheckMethod, wire.SettleMethod} {
		if err := mcp.AddSendingCustomMethod[*wire.PlacementParams, *wire.PlacementResult](client, method); err != nil {
			return nil, err
		}
	}
	transport := &mcp.IOTransport{Reader: io.NopCloser(out), Writer: s.input}
	if s.mcp, err = client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: wire.MCP}); err != nil {
		return nil, c.notStarted(ctx, process, err)
	}
	return s, nil
}

// input is what a worker reads. Unlike a channel of SSH it may be closed by
// several, and while something is written, which is finished first.
type input struct {
	w io.WriteCloser

	mu     sync.Mutex
	closed bool
	once   sync.Once
}

// Write implements [io.Writer].
func (i *input) Write(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return 0, io.ErrClosedPipe
	}
	return i.w.Write(b)
}

// Close implements [io.Closer]. It does not wait.
func (i *input) Close() error {
	i.once.Do(func() {
		go func() { // closing the process ends a write that hangs
			i.mu.Lock()
			defer i.mu.Unlock()
			i.closed = true
			_ = i.w.Close()
		}()
	})
	return nil
}

// maxShown and maxReason bound a word and a sentence of a worker, in bytes.
const maxShown, maxReason = 64, 1000

// newID is the id of a change, and a nonce.
func newID() string {
	id := make([]byte, 12)
	rand.Read(id)
	return hex.EncodeToString(id)
}

func (s *session) greet(out *bufio.Reader) (reply wire.Reply, err error) {
	hello := wire.Hello{
		Protocol: s.c.o.protocol, Nonce: newID(), Gateway: s.c.o.Version, StateDir: s.c.o.StateDir, Settings: s.c.o.Settings,
		PatienceMs: s.c.o.StartTimeout.Milliseconds() / 5, // an older worker may need three of them
	}
	if err := wire.WriteHello(s.input, hello); err != nil {
		return reply, err
	}
	return reply, wire.ReadAnswer(out, hello.Nonce, &reply)
}

// The exit statuses of a shell that finds no program, or one that it can't
// execute.
const (
	exitNotFound      = 127
	exitNotExecutable = 126
)

// exitTimeout is how long a process may take to say how it ended.
const exitTimeout = 2 * time.Second

// exitCode is that of a process whose output has ended; -1 if it doesn't say.
func exitCode(p *Process) int {
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		var exit *ExitError
		if errors.As(err, &exit) {
			return exit.Code
		}
		if err == nil {
			return 0
		}
	case <-time.After(exitTimeout):
		_ = p.Close()
		<-ended
	}
	return -1
}

// notStarted says why no worker answered.
func (c *Client) notStarted(ctx context.Context, p *Process, cause error) error {
	install := "Ask the owner to run: gateway hosts install " + c.o.ID
	if ctx.Err() != nil {
		return hosts.Unavailable.Newf("The worker on %s did not answer in time.", c.o.Name).Because(cause)
	}
	switch code := exitCode(p); code {
	case exitNotFound:
		return hosts.Unavailable.Newf("The worker is not installed: gateway hosts install %s", c.o.ID).WithHint(install).Because(cause)
	case exitNotExecutable:
		return hosts.Unavailable.Newf("The worker on %s can't be executed there: gateway hosts install %s", c.o.Name, c.o.ID).WithHint(install).Because(cause)
	default:
		return hosts.Unavailable.Newf("The worker on %s ended before it answered: gateway hosts check %s tells why.", c.o.Name, c.o.ID).
			Because(fmt.Errorf("%w (exit status %d)", cause, code))
	}
}

// accept checks the first line of a worker.
func (c *Client) accept(reply wire.Reply) error {
	install := "Ask the owner to run: gateway hosts install " + c.o.ID
	if e := reply.Error; e != nil {
		cause := fmt.Errorf("%s: %s", tool.Shown(e.Code, maxShown), tool.Shown(e.Message, maxReason))
		switch e.Code {
		case wire.CodeGatewayOutdated:
			return hosts.Outdated.Newf("The worker on %s (version %s) is too new for this gateway.", c.o.Name, reply.Version).
				WithHint("Ask the owner to update the gateway, or to run: gateway hosts install " + c.o.ID).Because(cause)
		case wire.CodeBusy:
			return hosts.Unavailable.Newf("Another worker on %s uses the same state directory and does not end.", c.o.Name).Because(cause)
		case wire.CodeStateDir:
			return hosts.Unavailable.Newf("The worker's state directory on %s can't be used: gateway hosts check %s tells why.", c.o.Name, c.o.ID).Because(cause)
		}
		return hosts.Unavailable.Newf("The worker on %s could not start: gateway hosts check %s tells why.", c.o.Name, c.o.ID).Because(cause)
	}
	if reply.Protocol < wire.Oldest(c.o.protocol) || reply.Protocol > c.o.protocol {
		return hosts.Outdated.Newf("The worker on %s (version %s) is too old for this gateway.", c.o.Name, reply.Version).WithHint(install)
	}
	return nil
}

// lose ends the session: no call is made on it any more.
func (s *session) lose() { s.loseOnce.Do(func() { close(s.lost) }) }

// live reports whether answers may come.
func (s *session) live() bool {
	select {
	case <-s.lost:
	case <-s.link.Done():
	default:
		return true
	}
	return false
}

// wait waits until no answer will come any more.
func (s *session) wait() {
	s.c.work.Go(func() {
		_ = s.mcp.Wait()
		s.lose()
	})
	select {
	case <-s.lost:
	case <-s.link.Done():
	case <-s.c.ctx.Done():
	}
	s.lose()
}

// reason ends the process and says why the session was lost; nil when that was
// the connection, or this process is done with it.
func (s *session) reason() error {
	code, alive := -1, false
	select {
	case <-s.link.Done():
	case <-s.c.ctx.Done():
	default:
		_ = s.input.Close()
		code, alive = exitCode(s.process), true
	}
	_ = s.process.Close()
	s.readers.Wait()
	select {
	case <-s.link.Done(): // it needn't be the first to show it
		alive = false
	default:
	}
	switch {
	case !alive:
		return nil
	case code == wire.ExitReplaced:
		return hosts.Unavailable.Newf("The worker on %s made way for another one: another gateway may use the same state directory there.", s.c.o.Name)
	}
	return hosts.Unavailable.Newf("The worker on %s has ended.", s.c.o.Name).Because(fmt.Errorf("exit status %d: %s", code, s.said.end()))
}

// retire has the worker end by itself.
func (s *session) retire(most time.Duration) {
	_ = s.input.Close()
	select {
	case <-s.lost:
	case <-time.After(most):
	}
}

// errLost is the error of a call whose session was lost before the answer.
var errLost = errors.New("the connection to the worker was lost")

// call makes a call. The error is a refusal, that of ctx, errLost in a chain, or
// one that says that the worker doesn't know what it was asked.
func (s *session) call(ctx context.Context, name string, meta mcp.Meta, in, out any) error {
	r, err := await(ctx, s, func() (*mcp.CallToolResult, error) {
		return s.mcp.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: name, Arguments: in})
	})
	if err != nil {
		return err
	}
	text := ""
	if len(r.Content) > 0 {
		if t, ok := r.Content[0].(*mcp.TextContent); ok {
			text = t.Text
		}
	}
	if !r.IsError {
		if err := json.Unmarshal([]byte(text), out); err != nil {
			return fmt.Errorf("an answer of the worker can't be read: %w", err)
		}
		return nil
	}
	var e tool.Envelope
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return fmt.Errorf("a refusal of the worker can't be read: %w", err)
	}
	f := e.Error
	err = (&wire.Failure{Code: f.Code, Message: f.Message, Hint: f.Hint, Retryable: f.Retryable}).Err()
	if refused := (*fault.Error)(nil); errors.As(err, &refused) {
		return refused.Because(fmt.Errorf("on the worker, as %s", tool.Shown(f.ID, maxShown)))
	}
	return err
}

// deliveryTime is how long an answer may take that came just before a session was
// lost.
const deliveryTime = time.Second

// await waits for a call, which may hang in sending: the SDK sends one message
// after the other, and a connection that has stopped takes none.
func await[T any](ctx context.Context, s *session, do func() (T, error)) (out T, err error) {
	type answer struct {
		out T
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		out, err := do()
		answers <- answer{out, err}
	}()
	select {
	case a := <-answers:
		return a.out, s.broken(ctx, a.err)
	case <-ctx.Done():
		return out, context.Cause(ctx)
	case <-s.lost:
	}
	select {
	case a := <-answers:
		return a.out, s.broken(ctx, a.err)
	case <-time.After(deliveryTime):
		return out, errLost
	}
}

// broken sorts the errors of the SDK.
func (s *session) broken(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var answered *jsonrpc.Error
	if errors.As(err, &answered) && answered.Code != 0 {
		return fmt.Errorf("the worker does not take the call: %w", err)
	}
	s.lose()
	return fmt.Errorf("%w: %w", errLost, err)
}

// complaint is the end of what a worker says on its standard error.
type complaint struct {
	mu   sync.Mutex
	last string
}

// A worker's lines go to the log, this many at once and then one every so often: a
// host must not be able to fill the gateway's disk.
const (
	saidAtOnce = 100
	saidEvery  = 10 * time.Second
)

func (c *complaint) read(r io.Reader, log *slog.Logger) {
	const most = 4 << 10
	lines := bufio.NewReaderSize(r, most)
	may := rate.NewLimiter(rate.Every(saidEvery), saidAtOnce)
	for {
		line, err := lines.ReadSlice('\n')
		if text := tool.Shown(string(line), most); len(line) > 1 {
			c.mu.Lock()
			c.last = text
			c.mu.Unlock()
			if may.Allow() {
				log.Info("the worker says", "line", text)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (c *complaint) end() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}
