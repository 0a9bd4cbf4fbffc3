package transfers

// Limits of the arguments of the transfer tools, for their schemas and for those
// who check them. The lengths are in code points.
const (
	MaxWaitMs   = 20000 // and what is waited when the caller does not say
	MaxURL      = 8192
	MaxFileID   = 512
	MaxMimeType = 256
	MaxFileName = 1024
)
