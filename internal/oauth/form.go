package oauth

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"

	"agentrelay/internal/fault"
)

// maxForm bounds the body of a token or revocation request.
const maxForm = 64 << 10

// readRequest reads the parameters and the client's credentials of a POST. It
// has answered when it returns false.
func (s *Server) readRequest(w http.ResponseWriter, r *http.Request) (url.Values, credentials, bool) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		s.failWith(w, r, http.StatusMethodNotAllowed, invalidRequest.New("This endpoint takes POST."))
		return nil, credentials{}, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm))
	if err != nil {
		s.failBody(w, r, invalidRequest, err)
		return nil, credentials{}, false
	}
	form, refusal := parseForm(r.Header.Get("Content-Type"), body)
	if refusal != nil {
		s.fail(w, r, refusal)
		return nil, credentials{}, false
	}
	creds, refusal := credentialsOf(r, form)
	if refusal != nil {
		s.fail(w, r, refusal)
		return nil, credentials{}, false
	}
	return form, creds, true
}

// failBody answers a body that could not be read.
func (s *Server) failBody(w http.ResponseWriter, r *http.Request, kind fault.Kind, err error) {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		s.failWith(w, r, http.StatusRequestEntityTooLarge, kind.Newf("The body has more than %d bytes.", tooLarge.Limit))
		return
	}
	s.fail(w, r, kind.New("The body ended early.").Because(err))
}

// parseForm reads a form body, or the same parameters as a flat JSON object,
// which some clients send. Parameters without a value count as left out, and no
// parameter may come twice (RFC 6749 section 3.2), but for resource.
func parseForm(contentType string, body []byte) (url.Values, *fault.Error) {
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return nil, invalidRequest.New("The Content-Type is not readable; send application/x-www-form-urlencoded.")
	}
	var form url.Values
	switch media {
	case "", "application/x-www-form-urlencoded":
		if form, err = url.ParseQuery(string(body)); err != nil {
			return nil, invalidRequest.New("The body is not a form in application/x-www-form-urlencoded.")
		}
	case "application/json":
		if form, err = parseJSON(body); err != nil {
			return nil, invalidRequest.New("The body is not one flat JSON object of strings.")
		}
	default:
		return nil, invalidRequest.New("The body must be application/x-www-form-urlencoded.")
	}
	if refusal := checkRepeats(form); refusal != nil {
		return nil, refusal
	}
	for name, values := range form {
		if len(values) == 1 && values[0] == "" {
			delete(form, name)
		}
	}
	return form, nil
}

// parameterNames are the names that a refusal may repeat. Any other may be a
// token that a client has put in the wrong place.
var parameterNames = []string{
	"client_assertion", "client_assertion_type", "client_id", "client_secret", "code", "code_challenge", "code_challenge_method", "code_verifier",
	"grant_type", "redirect_uri", "refresh_token", "response_mode", "response_type", "scope", "state", "token", "token_type_hint",
}

func checkRepeats(form url.Values) *fault.Error {
	for name, values := range form {
		switch {
		case len(values) < 2 || name == "resource":
		case slices.Contains(parameterNames, name):
			return invalidRequest.Newf("The parameter %s is there more than once.", name)
		default:
			return invalidRequest.New("A parameter is there more than once.")
		}
	}
	return nil
}

// parseJSON reads an object member by member, so that a repeated one is seen.
func parseJSON(body []byte) (url.Values, error) {
	form := url.Values{}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		value, err := d.Token()
		if err != nil {
			return nil, err
		}
		text, ok := value.(string)
		if !ok && value != nil {
			return nil, errors.New("a value is not a string")
		}
		form.Add(name.(string), text)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return form, nil
}
