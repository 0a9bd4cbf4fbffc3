package events

import (
	"encoding/json"
	"fmt"
	"slices"

	"agentrelay/internal/callerid"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// The names of the events.
const (
	PeerMessage    = "peer.message"
	AgentAttention = "agent.attention"
)

// Definition is an event as events/list shows it.
type Definition struct {
	Name          string          `json:"name"`
	Description   string          `json:"description"`
	Delivery      []string        `json:"delivery"`
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

// eventType is an event that can be subscribed to.
type eventType struct {
	Definition
	permission principal.Permission
	// canonical checks the arguments, each a string, and resolves them: equal
	// results are the same subscription. It is given the known ones only.
	canonical func(s *Service, given map[string]string) (map[string]string, error)
	required  []string
	optional  []string
	// exists refuses arguments that name nothing of this owner; nil knows no
	// such rule.
	exists func(s *Service, q store.Querier, owner string, arguments map[string]string) error
}

// catalogue is what can be subscribed to, in the order of events/list.
var catalogue = []eventType{
	{
		Definition: Definition{
			Name: PeerMessage,
			Description: "New mail for one peer of the peer mailbox. Register the peer first (register_peer); the subscription then follows its peerId, also when the peer is stopped and registered again. " +
				"The event carries ids and no text: read the message with get_peer_message {messageId, peerId} and mark it done with ack_peer_message. An event can arrive twice with the same eventId.",
			Delivery: []string{"webhook"},
			InputSchema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["peerId"],"properties":{` +
				`"peerId":{"type":"string","pattern":"` + callerid.Pattern + `","description":"The peer whose new mail is announced: your own peerId, as you registered it."}}}`),
			PayloadSchema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["eventId","messageId","peerId","generation"],"properties":{` +
				`"eventId":{"type":"string","description":"The same as the event's own eventId."},` +
				`"messageId":{"type":"string","format":"uuid","description":"The message, for get_peer_message and ack_peer_message."},` +
				`"peerId":{"type":"string","description":"The recipient."},` +
				`"generation":{"type":"integer","minimum":1,"description":"The recipient's generation when the message was sent."}}}`),
		},
		permission: principal.Mailbox,
		required:   []string{"peerId"},
		canonical: func(_ *Service, given map[string]string) (map[string]string, error) {
			if !callerid.Valid(given["peerId"]) {
				return nil, invalid("arguments.peerId", "must be a peer id: letters, digits, . _ : and -, at most 128")
			}
			return given, nil
		},
		exists: func(s *Service, q store.Querier, owner string, arguments map[string]string) error {
			_, _, found, err := s.mailbox.Peer(q, owner, arguments["peerId"])
			if err != nil {
				return fmt.Errorf("looking for a peer: %w", err)
			}
			if !found {
				return refuse(UnknownSubject.New("arguments.peerId names no peer of this owner."), "kind", "peer")
			}
			return nil
		},
	},
	{
		Definition: Definition{
			Name: AgentAttention,
			Description: "An agent that was dispatched with this workspaceId and routeId wrote a message, needs input, waits for a permission, or ended its turn. " +
				"Choose a routeId of your own, subscribe, and give it with the dispatch. The event is a notice: read what happened with get_request_result or get_agent_message. It never says that a task succeeded.",
			Delivery: []string{"webhook"},
			InputSchema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["workspaceId","routeId"],"properties":{` +
				`"workspaceId":{"type":"string","minLength":1,"maxLength":128,"description":"The workspace of the agent, as list_workspaces shows it."},` +
				`"routeId":{"type":"string","pattern":"` + callerid.Pattern + `","description":"The route that dispatches name; choose one that only you use."},` +
				`"hostId":{"type":"string","minLength":1,"maxLength":128,"description":"The host of the agent, as list_hosts shows it; left out, the local host."}}}`),
			PayloadSchema: json.RawMessage(`{"type":"object","additionalProperties":false,` +
				`"required":["kind","requestId","agentId","workspaceId","routeId","turnId","summary","readyForReply","terminalKind","acceptancePassed"],"properties":{` +
				`"kind":{"enum":["message","needs_input","result","error","permission","canceled"],"description":"What happened."},` +
				`"requestId":{"type":"string","description":"The dispatch."},` +
				`"agentId":{"type":"string","description":"The agent."},` +
				`"workspaceId":{"type":"string","description":"Its workspace."},` +
				`"routeId":{"type":"string","description":"The route of this subscription."},` +
				`"hostId":{"type":"string","description":"Its host; left out for the local one."},` +
				`"turnId":{"type":["string","null"],"description":"The turn, when the daemon names it."},` +
				`"messageId":{"type":"string","description":"For get_agent_message; with the kinds message and needs_input only."},` +
				`"summary":{"type":"string","maxLength":2000,"description":"The beginning of what the agent wrote."},` +
				`"readyForReply":{"type":"boolean","description":"Whether the agent is idle and waits."},` +
				`"terminalKind":{"enum":["turn_completed","turn_failed","turn_canceled","observed_error","observed_idle",null],"description":"How the turn was seen to end."},` +
				`"acceptancePassed":{"type":"null","description":"Always null: whether the task was done well is for you to find out."}}}`),
		},
		permission: principal.Agents,
		required:   []string{"workspaceId", "routeId"},
		optional:   []string{"hostId"},
		canonical: func(s *Service, given map[string]string) (map[string]string, error) {
			if n := len([]rune(given["workspaceId"])); n < 1 || n > 128 {
				return nil, invalid("arguments.workspaceId", "must have 1 to 128 characters")
			}
			if !callerid.Valid(given["routeId"]) {
				return nil, invalid("arguments.routeId", "must be letters, digits, . _ : and -, at most 128")
			}
			host, err := s.host(given["hostId"])
			if err != nil {
				return nil, invalid("arguments.hostId", "names no host; list_hosts shows those that exist")
			}
			return map[string]string{"workspaceId": given["workspaceId"], "routeId": given["routeId"], "hostId": host}, nil
		},
	},
}

// List returns the events that this caller may subscribe to, in a fixed order.
func (s *Service) List(who principal.Principal) []Definition {
	list := []Definition{}
	for _, t := range catalogue {
		if s.offers(t.Name) && who.Permissions.Has(t.permission) {
			list = append(list, t.Definition)
		}
	}
	return list
}

// CheckList refuses parameters of events/list that are none. There is one page,
// so no cursor is right.
func CheckList(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var p struct{ Cursor *string }
	if err := json.Unmarshal(raw, &p); err != nil {
		return invalid("params", "must be an object, with a string as cursor")
	}
	if p.Cursor != nil && *p.Cursor != "" {
		return invalid("cursor", "is none that events/list gave")
	}
	return nil
}

func (s *Service) offers(name string) bool { return s.offer == nil || slices.Contains(s.offer, name) }

func findType(name string) (eventType, error) {
	i := slices.IndexFunc(catalogue, func(t eventType) bool { return t.Name == name })
	if i < 0 {
		return eventType{}, unknownEvent()
	}
	return catalogue[i], nil
}

func unknownEvent() error {
	return refuse(UnknownEvent.New("name is no event of this gateway."), "kind", "event")
}

// arguments reads the arguments of a subscription; nil and null are none.
func (t eventType) arguments(s *Service, raw json.RawMessage) (map[string]string, error) {
	var members map[string]json.RawMessage
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &members); err != nil {
			return nil, invalid("arguments", "must be an object")
		}
	}
	given := map[string]string{}
	for name, value := range members {
		if !slices.Contains(t.required, name) && !slices.Contains(t.optional, name) {
			return nil, invalid("arguments", "has a member that this event does not know")
		}
		var text *string
		if err := json.Unmarshal(value, &text); err != nil || text == nil {
			return nil, invalid("arguments."+name, "must be a string")
		}
		given[name] = *text
	}
	for _, name := range t.required {
		if _, ok := given[name]; !ok {
			return nil, invalid("arguments."+name, "is required")
		}
	}
	return t.canonical(s, given)
}

// canonicalJSON is arguments with sorted keys: one text for one subscription.
func canonicalJSON(arguments map[string]string) string {
	raw, err := encode(arguments)
	if err != nil {
		panic(err) // strings always encode
	}
	return string(raw)
}
