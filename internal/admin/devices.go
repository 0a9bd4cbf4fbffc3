package admin

import (
	"context"

	"agentrelay/internal/devices"
)

// DevicesOut is the paired devices.
type DevicesOut struct {
	Devices []devices.Paired `json:"devices"`
}

// The commands about devices.
var (
	// ListDevices lists the paired devices by name.
	ListDevices = Command[None, DevicesOut]{"devices.list", func(ctx context.Context, b *Backend, _ None) (DevicesOut, error) {
		all, err := b.Devices.ListPaired(ctx)
		return DevicesOut{all}, err
	}}

	// PairDevice shows the pairing code that is valid now, or makes one.
	PairDevice = Command[devices.PairIn, devices.Code]{"devices.pair", func(ctx context.Context, b *Backend, in devices.PairIn) (devices.Code, error) {
		return b.Devices.PairingCode(ctx, in)
	}}

	// RevokeDevice ends a device's access.
	RevokeDevice = Command[devices.RevokeIn, devices.RevokeOut]{"devices.revoke", func(ctx context.Context, b *Backend, in devices.RevokeIn) (devices.RevokeOut, error) {
		return b.Devices.Revoke(ctx, in)
	}}

	// ListDeviceCalls lists a page of the calls of devices, newest first.
	ListDeviceCalls = Command[devices.CallsIn, devices.CallsOut]{"devices.calls", func(ctx context.Context, b *Backend, in devices.CallsIn) (devices.CallsOut, error) {
		return b.Devices.Calls(ctx, in)
	}}
)
