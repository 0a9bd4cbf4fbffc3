package devices

import "agentrelay/internal/fault"

// The refusals of devices. The messages of those that the specification words are
// the specification's; a failed call has its reason from the device, as its caller
// must read it.
var (
	NotConnected   = fault.Kind{Code: "device_not_connected", Hint: "spooky_list shows the devices that are connected. Ask the owner to start the device's program, then repeat the call.", Retryable: true}
	UnknownTool    = fault.Kind{Code: "unknown_device_tool", Hint: "Call one of the tools that the device has; spooky_schema shows its arguments."}
	Busy           = fault.Kind{Code: "device_busy", Hint: "One call runs on a device at a time and eight may wait. Wait for the others to end, then repeat the call.", Retryable: true}
	ArgsTooLarge   = fault.Kind{Code: "device_args_too_large", Hint: "A call has at most 1 MiB. Send less, for example in several calls. Nothing was sent to the device."}
	Denied         = fault.Kind{Code: "device_denied", Hint: "The device's human, or its policy, said no, and nothing ran. Do not repeat the call unless the owner asks you to."}
	ToolFailed     = fault.Kind{Code: "device_tool_failed", Hint: "The tool ran and reports the failure in the message. Correct the arguments, or tell the owner."}
	TimedOut       = fault.Kind{Code: "device_timeout", Hint: "If the call was sent, the tool may have run or still run: look at the device before you repeat it. Long work belongs into a job (job-start), if the device has that tool."}
	Cancelled      = fault.Kind{Code: "device_call_cancelled", Hint: "The caller withdrew the call. If it was sent, the tool may have run: look before you repeat it."}
	Revoked        = fault.Kind{Code: "device_revoked", Hint: "The owner ended this device's access. Use another one; spooky_list shows them."}
	Lost           = fault.Kind{Code: "device_lost", Hint: "The link was lost while the call was under way, so it may have run: look at the device before you repeat it."}
	ResultTooLarge = fault.Kind{Code: "device_result_too_large", Hint: "The tool ran, but its result was over 1 MiB. Ask it for less."}
	UnknownCall    = fault.Kind{Code: "unknown_device_call", Hint: "Give the callId that spooky_call answered, unchanged."}
	NoOutput       = fault.Kind{Code: "device_output_removed", Hint: "The call ended well, and its output was kept for a week. Make a new call if you need it again."}
	NeedsGateway   = fault.Kind{Code: "pairing_needs_gateway", Hint: "Start the gateway (gateway serve), then repeat the command."}
	UnknownDevice  = fault.Kind{Code: "unknown_device", Hint: "gateway devices list shows the names."}
)

// Kinds lists the refusals of this package for docs/errors.md. Arguments that a
// tool's schema refuses are [fault.InvalidArguments].
func Kinds() []fault.Kind {
	return []fault.Kind{
		NotConnected, UnknownTool, Busy, ArgsTooLarge, Denied, ToolFailed, TimedOut, Cancelled, Revoked, Lost, ResultTooLarge,
		UnknownCall, NoOutput, NeedsGateway, UnknownDevice,
	}
}

// failures are the refusals that end a stored call, by code.
var failures = map[string]fault.Kind{
	Denied.Code: Denied, ToolFailed.Code: ToolFailed, TimedOut.Code: TimedOut, Cancelled.Code: Cancelled, Revoked.Code: Revoked,
	Lost.Code: Lost, ResultTooLarge.Code: ResultTooLarge, NotConnected.Code: NotConnected,
}
