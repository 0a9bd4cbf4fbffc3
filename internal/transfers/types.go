package transfers

import (
	"encoding/json"
	"time"
)

// Time is an instant that JSON shows as RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// String is the JSON form without quotes.
func (t Time) String() string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// at makes a Time of database milliseconds; 0, which a NULL is read as, is the
// zero Time.
func at(ms int64) Time {
	if ms == 0 {
		return Time{}
	}
	return Time{time.UnixMilli(ms).UTC()}
}

// Direction is which way a file goes.
type Direction string

// The directions.
const (
	Export Direction = "export" // out of a project
	Import Direction = "import" // into a project
)

// State is the state of a transfer.
type State string

// The states. All but pending, ready and outcome_unknown are final, with one
// exception: an expired export whose last download is still running becomes
// completed when that delivers the missing bytes.
const (
	// Pending: accepted and not ended. It waits for its turn or is at work.
	Pending State = "pending"
	// Ready: the snapshot of an export is on disk and can be downloaded until
	// expiresAt. Not all of its bytes were sent yet.
	Ready State = "ready"
	// Completed: an import is in its place, on disk. An export: every byte of the
	// snapshot was handed to the network at least once, over one or several
	// downloads; whether the receiver has kept them is not known, and the link
	// works until expiresAt.
	Completed State = "completed"
	// Failed: it was not done, for the reason in error. An import has changed
	// nothing.
	Failed State = "failed"
	// StateInterrupted: the gateway stopped or crashed, or the host of an import
	// failed, before it was done. An import has changed nothing.
	StateInterrupted State = "interrupted"
	// StateUnknown: an import may be in its place or not, and the host can't be
	// asked. It becomes completed or interrupted once it can.
	StateUnknown State = "outcome_unknown"
	// Expired: the link of an export ended before all bytes were sent.
	Expired State = "expired"
	// Revoked: the owner, or the end of its client, ended the transfer first. An
	// import has changed nothing.
	Revoked State = "revoked"
)

// Transfer is the receipt of a transfer.
type Transfer struct {
	RequestID string    `json:"requestId"`
	HostID    string    `json:"hostId"`
	ProjectID string    `json:"projectId"`
	Direction Direction `json:"direction"`
	State     State     `json:"state"`
	Path      string    `json:"path"` // as it was given
	Size      *int64    `json:"size,omitempty"`
	SHA256    string    `json:"sha256,omitempty"`
	// FileName is the name under which an export is downloaded, or the name that
	// came with an import.
	FileName string `json:"fileName,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
	// DownloadURL works for whoever has it, until ExpiresAt; present only while
	// it works.
	DownloadURL string `json:"downloadUrl,omitempty"`
	ExpiresAt   Time   `json:"expiresAt,omitzero"`
	// BytesServed counts what all downloads of an export were sent.
	BytesServed int64 `json:"bytesServed,omitempty"`
	CreatedAt   Time  `json:"createdAt"`
	// Error says why a transfer was not done, or why that is not known.
	Error     *Failure `json:"error,omitempty"`
	Duplicate bool     `json:"duplicate"` // an earlier call has begun it
}

// Failure is a refusal in a receipt. The requestId keeps it for ever.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// ExportDirectFileIn is the arguments of export_direct_file.
type ExportDirectFileIn struct {
	HostID    string `json:"hostId"` // canonical; resolved by the caller
	ProjectID string `json:"projectId"`
	Path      string `json:"path"`
	RequestID string `json:"requestId"`        // the caller key
	WaitMs    *int   `json:"waitMs,omitempty"` // 0..20000, nil is 20000
}

// ImportDirectFileIn is the arguments of import_direct_file.
type ImportDirectFileIn struct {
	HostID    string `json:"hostId"` // canonical; resolved by the caller
	ProjectID string `json:"projectId"`
	Path      string `json:"path"`
	RequestID string `json:"requestId"` // the caller key
	// ExpectedSHA256 is what the file has now (64 hex digits); nil creates it.
	ExpectedSHA256 *string `json:"expectedSha256"`
	SHA256         *string `json:"sha256,omitempty"` // what the content must have
	File           File    `json:"file"`
	WaitMs         *int    `json:"waitMs,omitempty"` // 0..20000, nil is 20000
}

// File is a file that a chat client offers for download (_meta
// openai/fileParams). Only the address is used; it is not stored.
type File struct {
	DownloadURL string  `json:"download_url"` // https, at most 8192 bytes
	FileID      string  `json:"file_id"`
	MimeType    *string `json:"mime_type,omitempty"`
	FileName    *string `json:"file_name,omitempty"`
}

// GetDirectTransferIn is the arguments of get_direct_transfer.
type GetDirectTransferIn struct {
	HostID    string `json:"hostId"` // canonical; resolved by the caller
	RequestID string `json:"requestId"`
}
