package admin

import (
	"context"
	"errors"
	"net/url"
	"time"
)

// Doctor is what the owner's doctor asks of a running gateway.
type Doctor interface {
	// Begin opens a ticket, with which the MCP endpoint answers what arrived there.
	Begin(ctx context.Context) (DoctorTicket, error)
	// Consent gives the doctor's own client the consent that it asks for; see
	// [oauth.Server.ConsentTrial].
	Consent(ctx context.Context, params url.Values) (redirect string, err error)
	// End ends a ticket and removes a client, either of which may be "".
	End(ctx context.Context, in DoctorEndIn) error
	// Facts is what only the running gateway knows.
	Facts(ctx context.Context) DoctorFacts
}

// DoctorTicket is a secret for the query of the MCP endpoint (doctor=…), and what
// this gateway and no other answers to it.
type DoctorTicket struct {
	Ticket    string    `json:"ticket"`
	Proof     string    `json:"proof"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// DoctorConsentIn is the query of an authorization request.
type DoctorConsentIn struct {
	Query string `json:"query"`
}

// DoctorConsentOut is where a browser would be sent.
type DoctorConsentOut struct {
	Redirect string `json:"redirect"`
}

// DoctorEndIn says what a doctor is done with.
type DoctorEndIn struct {
	Ticket   string `json:"ticket"`
	ClientID string `json:"clientId"`
}

// DoctorFacts is what only the running gateway knows.
type DoctorFacts struct {
	PID int `json:"pid"`
	// Program is the file that runs; Replaced says that another one lies there now.
	Program  string `json:"program"`
	Replaced bool   `json:"replaced"`
	// Daemons are the agent daemons of all hosts.
	Daemons []DaemonInfo `json:"daemons"`
	// Projects are those of the Direct workspace, of all hosts.
	Projects []ProjectInfo `json:"projects"`
}

// DaemonInfo is an agent daemon as the gateway sees it.
type DaemonInfo struct {
	HostID  string    `json:"hostId"`
	Up      bool      `json:"up"`
	State   string    `json:"state"`
	Since   time.Time `json:"since"`
	Code    string    `json:"code,omitempty"`   // why it is not up
	Reason  string    `json:"reason,omitempty"` // the same in a sentence
	Version string    `json:"version,omitempty"`
}

// ProjectInfo is a project as its host sees it.
type ProjectInfo struct {
	HostID      string `json:"hostId"`
	ProjectID   string `json:"projectId"`
	Unavailable string `json:"unavailable,omitempty"` // why nothing can be done in it
}

// FindProgramsIn names programs.
type FindProgramsIn struct {
	Names []string `json:"names"`
}

// FindProgramsOut says which of them commands would find, and where they look.
type FindProgramsOut struct {
	Missing []string `json:"missing"`
	Path    string   `json:"path"`
}

var errNoGateway = errors.New("no gateway runs on this state directory")

// The commands of the doctor.
var (
	// BeginDoctor opens a ticket.
	BeginDoctor = Command[None, DoctorTicket]{"doctor.begin", func(ctx context.Context, b *Backend, _ None) (DoctorTicket, error) {
		if b.Doctor == nil {
			return DoctorTicket{}, errNoGateway
		}
		return b.Doctor.Begin(ctx)
	}}

	// ConsentDoctor lets the doctor's own client in.
	ConsentDoctor = Command[DoctorConsentIn, DoctorConsentOut]{"doctor.consent", func(ctx context.Context, b *Backend, in DoctorConsentIn) (DoctorConsentOut, error) {
		if b.Doctor == nil {
			return DoctorConsentOut{}, errNoGateway
		}
		params, err := url.ParseQuery(in.Query)
		if err != nil {
			return DoctorConsentOut{}, errors.New("the query can't be read")
		}
		to, err := b.Doctor.Consent(ctx, params)
		return DoctorConsentOut{to}, err
	}}

	// EndDoctor ends a ticket and removes the doctor's client.
	EndDoctor = Command[DoctorEndIn, None]{"doctor.end", func(ctx context.Context, b *Backend, in DoctorEndIn) (None, error) {
		if b.Doctor == nil {
			return None{}, errNoGateway
		}
		return None{}, b.Doctor.End(ctx, in)
	}}

	// InspectDoctor tells the facts.
	InspectDoctor = Command[None, DoctorFacts]{"doctor.facts", func(ctx context.Context, b *Backend, _ None) (DoctorFacts, error) {
		if b.Doctor == nil {
			return DoctorFacts{}, errNoGateway
		}
		return b.Doctor.Facts(ctx), nil
	}}

	// FindPrograms looks for programs as commands of this machine would.
	FindPrograms = Command[FindProgramsIn, FindProgramsOut]{"doctor.programs", func(_ context.Context, b *Backend, in FindProgramsIn) (FindProgramsOut, error) {
		out := FindProgramsOut{Missing: []string{}}
		c, err := b.Commands()
		if err != nil {
			return out, err
		}
		_, out.Path = c.FindProgram("sh")
		for _, name := range in.Names {
			if found, _ := c.FindProgram(name); !found {
				out.Missing = append(out.Missing, name)
			}
		}
		return out, nil
	}}
)
