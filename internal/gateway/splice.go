package gateway

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// spliceFrom is the size of an object from which it pays to keep it out of the
// SDK's hands: bytes.
const spliceFrom = 4 << 10

// splices are the large objects in the answers to one request. The SDK gets marks
// in their places, which are replaced when it writes: it copies and checks each
// answer four times, text and object alike, and so would take longer for a page
// of a search than the search.
type splices struct {
	mu    sync.Mutex
	parts []splice
}

type splice struct {
	mark string // a JSON string that nobody can guess
	raw  string // the object that it stands for, and whose text it stands for
}

// hold replaces the object of a result, and the same as text, by a mark.
func (s *splices) hold(res mcp.Result) {
	call, ok := res.(*mcp.CallToolResult)
	if !ok || len(call.Content) == 0 {
		return
	}
	raw, isRaw := call.StructuredContent.(json.RawMessage)
	text, isText := call.Content[0].(*mcp.TextContent)
	if !isRaw || !isText || len(raw) < spliceFrom || text.Text != string(raw) {
		return
	}
	mark := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts = append(s.parts, splice{`"` + mark + `"`, text.Text})
	text.Text, call.StructuredContent = mark, json.RawMessage(`"`+mark+`"`)
}

// fill puts the objects into a message, as the SDK would have written them.
func (s *splices) fill(message []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		if !bytes.Contains(message, []byte(p.mark)) {
			continue
		}
		text, err := json.Marshal(p.raw)
		if err != nil {
			panic(err) // it is a string
		}
		var object bytes.Buffer
		json.HTMLEscape(&object, []byte(p.raw))
		message = bytes.Replace(message, []byte(p.mark), text, 1) // content comes first
		message = bytes.Replace(message, []byte(p.mark), object.Bytes(), 1)
	}
	return message
}
