package transfers

import "agentrelay/internal/fault"

// The refusals of transfers, besides those of the host (packages direct, files
// and transfers below it). Those that end a transfer stand in its receipt.
var (
	UnknownTransfer  = fault.Kind{Code: "unknown_transfer", Hint: "Check requestId and hostId. To learn whether a call arrived, repeat it with its own requestId and arguments."}
	TransferTooLarge = fault.Kind{Code: "transfer_too_large", Hint: "Split or compress the file with a command of the project, or ask the owner to raise transfers.maxFileBytes in the gateway's config."}
	TooManyTransfers = fault.Kind{Code: "too_many_transfers", Hint: "Wait until running transfers have ended and download links have expired (ten minutes by default), then repeat the call.", Retryable: true}
	SpoolFull        = fault.Kind{Code: "spool_full", Hint: "Repeat the call when download links have expired (ten minutes by default), or ask the owner to free disk space or to raise transfers.spoolBytes in the gateway's config.", Retryable: true}
	DownloadRefused  = fault.Kind{Code: "download_refused", Hint: "Give a public https address without a user name and without a fragment."}
	DownloadFailed   = fault.Kind{Code: "download_failed", Hint: "Check that the address still works (such addresses often expire), and import from a fresh one."}
	DownloadStalled  = fault.Kind{Code: "download_stalled", Hint: "Try again later, or from another source."}
	ContentMismatch  = fault.Kind{Code: "content_mismatch", Hint: "Check sha256 and the address: what was downloaded is another content. The project's file is as it was."}
	Interrupted      = fault.Kind{Code: "transfer_interrupted", Hint: "Nothing was changed."}
	OutcomeUnknown   = fault.Kind{Code: "outcome_unknown", Hint: "Ask again with get_direct_transfer: it is settled as soon as the host can be asked. Meanwhile do not import again."}
	TransferRevoked  = fault.Kind{Code: "transfer_revoked", Hint: "Ask the owner, who ended it."}
	TicketUnknown    = fault.Kind{Code: "unknown_ticket", Hint: "The link may have expired or been revoked: export the file again with export_direct_file and a new requestId."}
	RangeInvalid     = fault.Kind{Code: "range_not_satisfiable", Hint: "Ask for one range of bytes within the size that the Content-Range header names."}
	TooManyDownloads = fault.Kind{Code: "too_many_downloads", Hint: "Wait until another download of this link has ended, then repeat the request.", Retryable: true}
)

// Kinds lists the refusals of this package for docs/errors.md.
func Kinds() []fault.Kind {
	return []fault.Kind{
		UnknownTransfer, TransferTooLarge, TooManyTransfers, SpoolFull, DownloadRefused, DownloadFailed, DownloadStalled, ContentMismatch,
		Interrupted, OutcomeUnknown, TransferRevoked, TicketUnknown, RangeInvalid, TooManyDownloads,
	}
}
