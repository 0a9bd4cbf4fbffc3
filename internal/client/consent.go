package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// Decision is a button of the consent page.
type Decision string

// The decisions.
const (
	Allow Decision = "allow"
	Deny  Decision = "deny"
)

// maxPage bounds a page that is read whole, in bytes.
const maxPage = 1 << 20

// PageError is a page of the gateway where a redirect was expected.
type PageError struct {
	Status int
	Text   string // what a person would read
}

func (e *PageError) Error() string {
	return fmt.Sprintf("the gateway showed a page with status %d: %.300s", e.Status, e.Text)
}

// Consent plays the owner in a fresh browser: it opens the flow's URL, fills in
// the password, leaves the permissions as the page proposes them, presses the
// button and returns where the gateway sends the browser. A page that comes
// instead, such as that of a wrong password, is a [*PageError].
func (f *Flow) Consent(ctx context.Context, password string, d Decision) (*url.URL, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	browser := *f.server.http
	browser.Jar = jar
	browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL, nil)
	if err != nil {
		return nil, err
	}
	page, _, err := open(&browser, req)
	if err != nil {
		return nil, err
	}
	form := findForm(page)
	if form == nil {
		return nil, &PageError{Status: http.StatusOK, Text: text(page)}
	}
	fields, err := fill(form, password, d)
	if err != nil {
		return nil, err
	}
	action, err := req.URL.Parse(attr(form, "action"))
	if err != nil {
		return nil, fmt.Errorf("the form's address: %w", err)
	}
	req, err = http.NewRequestWithContext(ctx, http.MethodPost, action.String(), strings.NewReader(fields.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", action.Scheme+"://"+action.Host)
	page, to, err := open(&browser, req)
	if err != nil {
		return nil, err
	}
	if to == nil {
		return nil, &PageError{Status: http.StatusOK, Text: text(page)}
	}
	return to, nil
}

// open returns the page of a 200 answer or the target of a redirect.
func open(browser *http.Client, req *http.Request) (*html.Node, *url.URL, error) {
	res, err := browser.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", req.URL.Path, err)
	}
	defer res.Body.Close()
	if to, err := res.Location(); err == nil && res.StatusCode/100 == 3 {
		return nil, to, nil
	}
	page, err := html.Parse(io.LimitReader(res.Body, maxPage))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the page of %s: %w", req.URL.Path, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, nil, &PageError{Status: res.StatusCode, Text: text(page)}
	}
	return page, nil, nil
}

// fill is what a browser sends for a form as it stands, with the password and
// one button.
func fill(form *html.Node, password string, d Decision) (url.Values, error) {
	fields := url.Values{}
	pressed := false
	for n := range form.Descendants() {
		if n.Type != html.ElementNode || n.Data != "input" && n.Data != "button" {
			continue
		}
		name, value := attr(n, "name"), attr(n, "value")
		switch kind := attr(n, "type"); {
		case kind == "password":
			fields.Set(name, password)
		case kind == "checkbox" && !has(n, "checked"):
		case kind == "submit" || n.Data == "button":
			if value == string(d) || name == string(d) {
				fields.Set(name, value)
				pressed = true
			}
		default:
			fields.Add(name, value)
		}
	}
	if !pressed {
		return nil, errors.New("the consent page has no button " + string(d))
	}
	return fields, nil
}

func findForm(page *html.Node) *html.Node {
	for n := range page.Descendants() {
		if n.Type == html.ElementNode && n.Data == "form" {
			return n
		}
	}
	return nil
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name })
}

// text is the words of a page.
func text(page *html.Node) string {
	var words []string
	for n := range page.Descendants() {
		if n.Type == html.TextNode && n.Parent.Data != "style" && n.Parent.Data != "title" {
			words = append(words, strings.Fields(n.Data)...)
		}
	}
	return strings.Join(words, " ")
}
