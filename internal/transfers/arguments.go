package transfers

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"agentrelay/internal/callerid"
	host "agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
)

// Limits of arguments. Lengths are in bytes.
const (
	MaxWaitMs     = host.MaxWaitMs // and the default
	MaxURL        = host.MaxURL
	MaxFileID     = host.MaxFileID
	MaxMimeType   = host.MaxMimeType
	MaxFileName   = host.MaxFileName
	MaxPath       = 4096
	DefaultLimit  = 50
	MaxLimit      = 200
	maxNameLength = 180 // characters of the name of a download
)

func invalid(argument, rule string) error {
	return fault.InvalidArguments.New(argument + " " + rule)
}

func checkRequestID(id string) error {
	if !callerid.Valid(id) {
		return invalid("requestId", callerid.Rule)
	}
	return nil
}

func checkWait(ms *int) (time.Duration, error) {
	if ms == nil {
		return MaxWaitMs * time.Millisecond, nil
	}
	if *ms < 0 || *ms > MaxWaitMs {
		return 0, invalid("waitMs", fmt.Sprintf("must be 0 to %d", MaxWaitMs))
	}
	return time.Duration(*ms) * time.Millisecond, nil
}

// checkHash returns the lower-case form of a hash; nil and "" are none.
func checkHash(argument string, hash *string) (string, error) {
	if hash == nil {
		return "", nil
	}
	if _, err := hex.DecodeString(*hash); err != nil || len(*hash) != 2*sha256.Size {
		return "", invalid(argument, "must be 64 hexadecimal digits")
	}
	return strings.ToLower(*hash), nil
}

func checkText(argument, s string, least, most int) error {
	if len(s) < least || len(s) > most || !utf8.ValidString(s) {
		return invalid(argument, fmt.Sprintf("must have %d to %d bytes of UTF-8", least, most))
	}
	return nil
}

// request is the checked arguments of a call that begins a transfer.
type request struct {
	direction                            Direction
	hostID, projectID, path, requestID   string
	expected                             string // '' creates
	sha256, url, fileID, mimeType, named string // of an import
	wait                                 time.Duration
}

func (in ExportDirectFileIn) check() (request, error) {
	r := request{direction: Export, hostID: in.HostID, projectID: in.ProjectID, path: in.Path, requestID: in.RequestID}
	return r, r.checkCommon(in.WaitMs)
}

func (r *request) checkCommon(waitMs *int) (err error) {
	r.wait, err = checkWait(waitMs)
	return cmp.Or(checkRequestID(r.requestID), checkText("projectId", r.projectID, 1, 64), checkText("path", r.path, 1, MaxPath), err)
}

func (in ImportDirectFileIn) check() (request, error) {
	f := in.File
	r := request{
		direction: Import, hostID: in.HostID, projectID: in.ProjectID, path: in.Path, requestID: in.RequestID,
		url: f.DownloadURL, fileID: f.FileID, mimeType: deref(f.MimeType), named: deref(f.FileName),
	}
	var errExpected, errSHA error
	r.expected, errExpected = checkHash("expectedSha256", in.ExpectedSHA256)
	r.sha256, errSHA = checkHash("sha256", in.SHA256)
	return r, cmp.Or(
		r.checkCommon(in.WaitMs), errExpected, errSHA,
		checkText("file.download_url", r.url, 1, MaxURL), checkText("file.file_id", r.fileID, 1, MaxFileID),
		checkText("file.mime_type", r.mimeType, 0, MaxMimeType), checkText("file.file_name", r.named, 0, MaxFileName),
	)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// fingerprint is stored with a requestId and tells a repeat from another
// transfer. It has no waitMs, and no download_url: a client that repeats a call
// signs the address anew. The owner is left out, so that it survives a change of
// owner; so is the host, which is part of the key.
func (r request) fingerprint() []byte {
	h := sha256.New()
	for _, f := range []string{string(r.direction), r.projectID, r.path, r.expected, r.sha256, r.fileID, r.mimeType, r.named} {
		h.Write(binary.AppendUvarint(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	return h.Sum(nil)
}

// downloadName is the name under which a file is downloaded: its own, without
// what is not allowed in names somewhere or changes how a name is shown.
func downloadName(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune(`\/"<>:|?*`, r) || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) || r == utf8.RuneError {
			return '_'
		}
		return r
	}, name)
	if runes := []rune(name); len(runes) > maxNameLength {
		name = string(runes[:maxNameLength])
	}
	name = strings.TrimRight(name, ". ")
	return cmp.Or(name, "download.bin")
}
