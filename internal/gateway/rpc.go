package gateway

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/fault"
	"agentrelay/internal/tool"
)

// rpcKind is a JSON-RPC error of the MCP endpoint.
type rpcKind struct {
	number int64
	kind   fault.Kind
}

// rpcKinds are the errors of malformed MCP. The number is what the protocol
// defines; the kind stands in error.data.
var rpcKinds = []rpcKind{
	{jsonrpc.CodeParseError, fault.Kind{Code: "parse_error", Hint: "Send one JSON-RPC 2.0 message as UTF-8 JSON."}},
	{jsonrpc.CodeInvalidRequest, fault.Kind{Code: "invalid_request_message", Hint: "Send one JSON-RPC 2.0 object: jsonrpc \"2.0\", method, params, and an id (a string or an integer) for a request."}},
	{jsonrpc.CodeMethodNotFound, fault.Kind{Code: "method_not_found", Hint: "Use a method of MCP that this server's capabilities list; tools are called with tools/call."}},
	{jsonrpc.CodeInvalidParams, fault.Kind{Code: "invalid_params", Hint: "Correct the params of this method. The names of tools stand in the answer of tools/list."}},
	{mcp.CodeHeaderMismatch, fault.Kind{Code: "header_mismatch", Hint: "From protocol 2026-07-28 on each POST carries MCP-Protocol-Version, Mcp-Method and, for a named tool, Mcp-Name, equal to its body."}},
	{mcp.CodeMissingRequiredClientCapabilities, fault.Kind{Code: "missing_client_capability", Hint: "Declare the named capability in _meta."}},
	{mcp.CodeUnsupportedProtocolVersion, fault.Kind{Code: "unsupported_protocol_version", Hint: "Use one of the versions in data.supported."}},
	{jsonrpc.CodeInternalError, fault.Internal},
}

// rpcKindOf finds the kind of a number, if the number is one of the protocol's.
func rpcKindOf(number int64) (fault.Kind, bool) {
	for _, k := range rpcKinds {
		if k.number == number {
			return k.kind, true
		}
	}
	return fault.Kind{}, false
}

// rpcError is the error of a JSON-RPC response.
type rpcError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// rpcResponse is a JSON-RPC response that failed. ID is null when the request
// has none that can be read.
type rpcResponse struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   *rpcError       `json:"error"`
}

// rpcFailure makes the response to the request in body.
func rpcFailure(body []byte, number int64, message, id string) rpcResponse {
	e := &rpcError{Code: number, Message: message}
	e.explain(id)
	return rpcResponse{"2.0", requestID(body), e}
}

// explain adds the kind and the id that joins the error to the log to the data
// of an error. What the protocol defines for that data stays as it is.
func (e *rpcError) explain(id string) {
	k, ok := rpcKindOf(e.Code)
	if !ok {
		return
	}
	data := map[string]json.RawMessage{}
	if len(e.Data) > 0 && json.Unmarshal(e.Data, &data) != nil {
		return // no object: there is no room for ours
	}
	var ours map[string]json.RawMessage
	if err := json.Unmarshal(tool.Encode(tool.NewFailure(k.New(""), id)), &ours); err != nil {
		panic(err) // we encoded it
	}
	maps.Copy(ours, data)
	e.Data = tool.Encode(ours)
}

// name is the error in the log.
func (e *rpcError) name() string {
	var data struct{ Code string }
	if json.Unmarshal(e.Data, &data) == nil && data.Code != "" {
		return data.Code
	}
	if k, ok := rpcKindOf(e.Code); ok {
		return k.Code
	}
	return strconv.FormatInt(e.Code, 10)
}

// requestID is the id of the JSON-RPC request in body, or null.
func requestID(body []byte) json.RawMessage {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(body, &m) != nil || len(m.ID) == 0 || len(m.ID) > 256 || strings.ContainsRune("[{tf", rune(m.ID[0])) {
		return json.RawMessage("null")
	}
	return m.ID
}

// maxBatch bounds the messages of one request in protocol 2025-03-26, the only
// one that has batches. They run at the same time.
const maxBatch = 32

// checkMessage refuses a body before the SDK sees it: what is no JSON-RPC request
// or notification at all, more of them than one HTTP request may carry, or one
// whose answer its sender could not find by its id. It returns "" for all others.
func checkMessage(body []byte) (number int64, message string) {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	switch {
	case len(trimmed) == 0:
		return jsonrpc.CodeParseError, "The body is empty."
	case !utf8.Valid(body): // decoding would replace the bytes without a word
		return jsonrpc.CodeParseError, "The body is not UTF-8."
	case !json.Valid(body):
		return jsonrpc.CodeParseError, "The body is not JSON."
	}
	var messages []json.RawMessage
	if trimmed[0] != '[' {
		messages = append(messages, trimmed)
	} else if err := json.Unmarshal(trimmed, &messages); err != nil || len(messages) == 0 || len(messages) > maxBatch {
		return jsonrpc.CodeInvalidRequest, "A batch holds 1 to 32 messages."
	}
	ids := map[any]bool{}
	for _, raw := range messages {
		var m struct {
			ID     any             `json:"id"`
			Method json.RawMessage `json:"method"`
		}
		// A response is refused too: this server never asks anything.
		if json.Unmarshal(raw, &m) != nil || len(m.Method) == 0 {
			return jsonrpc.CodeInvalidRequest, "The body is no JSON-RPC request or notification."
		}
		switch {
		case m.ID == nil: // a notification, or a request that is refused for it
		case !answerable(m.ID):
			return jsonrpc.CodeInvalidRequest, "An id is a string or an integer, and an integer has at most 53 bits."
		case ids[m.ID]:
			return jsonrpc.CodeInvalidRequest, "Two requests of the batch have the same id."
		default:
			ids[m.ID] = true
		}
	}
	return 0, ""
}

// answerable reports whether an id comes back as it was sent: the SDK reads
// numbers as float64 and answers with integers.
func answerable(id any) bool {
	const most = 1<<53 - 1
	switch id := id.(type) {
	case string:
		return true
	case float64:
		return id == math.Trunc(id) && math.Abs(id) <= most
	}
	return false
}

// sdkText are texts with which the SDK refuses a message, by a part of each, and
// what we say instead: those of the SDK can quote the request.
var sdkText = []struct {
	part    string
	number  int64
	message string
}{
	{"malformed payload", jsonrpc.CodeInvalidRequest, "The body is no JSON-RPC 2.0 message."},
	{"Unsupported protocol version", mcp.CodeUnsupportedProtocolVersion, "The MCP-Protocol-Version header names no version of this server."},
	{"batching is not supported", jsonrpc.CodeInvalidRequest, "This protocol version has no batches: send one message per request."},
	{"JSON RPC not handled", jsonrpc.CodeMethodNotFound, "This server has no such method."},
	{"missing id for", jsonrpc.CodeInvalidRequest, "This method is a request and needs an id."},
	{"unexpected id for", jsonrpc.CodeInvalidRequest, "This method is a notification and must have no id."},
	{"missing required \"params\"", jsonrpc.CodeInvalidRequest, "This method needs params."},
	{"is not supported in the new protocol", jsonrpc.CodeMethodNotFound, "This protocol version has no such method."},
	{"unmarshaling", jsonrpc.CodeInvalidParams, "The params do not have the types that this method declares."},
}

// fromText makes our response of a plain text refusal, and its HTTP status. In
// the protocols before 2026-07-28 an unknown method is an ordinary response: their
// clients take any other status for a broken connection.
func fromText(text string, status int, p *post) (rpcResponse, int) {
	for _, t := range sdkText {
		if !strings.Contains(text, t.part) {
			continue
		}
		resp := rpcFailure(p.body, t.number, t.message, p.rec.id)
		switch {
		case t.number == mcp.CodeUnsupportedProtocolVersion:
			k, _ := rpcKindOf(t.number)
			resp.Error.Data = tool.Encode(versionData{tool.NewFailure(k.New(""), p.rec.id), mcp.UnsupportedProtocolVersionData{
				Supported: mcp.SupportedProtocolVersions(), Requested: tool.Shown(p.version, 32),
			}})
		case t.number == jsonrpc.CodeMethodNotFound && !p.modern() && string(resp.ID) != "null":
			status = http.StatusOK
		}
		return resp, status
	}
	if status >= 500 {
		return rpcFailure(p.body, jsonrpc.CodeInternalError, "The gateway failed to answer this request.", p.rec.id), status
	}
	return rpcFailure(p.body, jsonrpc.CodeInvalidRequest, "The request is not valid MCP.", p.rec.id), status
}

// versionData is what the protocol defines for an unsupported version, and our
// failure beside it.
type versionData struct {
	tool.Failure
	mcp.UnsupportedProtocolVersionData
}

// maxRPCMessage bounds an error message that the SDK made of a request's own
// words, such as the name of an unknown tool.
const maxRPCMessage = 300

// refine completes the JSON-RPC errors in a message of the SDK, or in a batch of
// them, and takes what the caller sent out of them. It also reports the codes.
// Anything else comes back as it was.
func refine(data []byte, id string) (_ []byte, codes []string) {
	if !bytes.Contains(data, []byte(`"error":{"code":`)) { // also matches a failed tool call, which has no top-level error
		return data, nil
	}
	if data[0] == '[' {
		var batch []json.RawMessage
		if json.Unmarshal(data, &batch) != nil {
			return data, nil
		}
		for i := range batch {
			var c []string
			batch[i], c = refine(batch[i], id)
			codes = append(codes, c...)
		}
		return tool.Encode(batch), codes
	}
	var resp rpcResponse
	if json.Unmarshal(data, &resp) != nil || resp.Error == nil {
		return data, nil
	}
	e := resp.Error
	if e.Code == 0 { // an error without a code of its own
		e.Code, e.Message = jsonrpc.CodeInternalError, "The gateway failed to answer this request."
	}
	for _, t := range sdkText {
		if t.number == e.Code && strings.Contains(e.Message, t.part) {
			e.Message = t.message
		}
	}
	if len(e.Message) > maxRPCMessage {
		e.Message = tool.Shown(e.Message, maxRPCMessage)
	}
	e.explain(id)
	if len(resp.ID) == 0 {
		resp.ID = json.RawMessage("null")
	}
	return tool.Encode(resp), []string{e.name()}
}
