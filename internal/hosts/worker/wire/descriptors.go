package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// SendFiles gives the other end of a unix socket two files, so that a channel's
// bytes go between it and SSH without a process that copies them.
func SendFiles(conn *net.UnixConn, in, out *os.File) error {
	_, _, err := conn.WriteMsgUnix([]byte{0}, syscall.UnixRights(int(in.Fd()), int(out.Fd())), nil)
	return err
}

// ReceiveFiles reads the first byte of a connection, and the files that came with
// it. Without files, rest begins with that byte. The caller closes the files.
func ReceiveFiles(conn *net.UnixConn) (in, out *os.File, rest io.Reader, err error) {
	first, space := make([]byte, 1), make([]byte, syscall.CmsgSpace(2*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(first, space)
	if err != nil {
		return nil, nil, nil, err
	}
	if n == 0 {
		return nil, nil, nil, io.EOF
	}
	fds, err := descriptors(space[:oobn])
	if err != nil {
		return nil, nil, nil, err
	}
	if len(fds) == 0 {
		return nil, nil, io.MultiReader(oneByte(first), conn), nil
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		syscall.CloseOnExec(fd)
		// So that closing a file ends what reads it.
		if err := syscall.SetNonblock(fd, true); err != nil {
			return nil, nil, nil, err
		}
		files[i] = os.NewFile(uintptr(fd), "channel")
	}
	if len(files) != 2 {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, nil, fmt.Errorf("%d files came, and not two", len(files))
	}
	return files[0], files[1], nil, nil
}

func descriptors(oob []byte) ([]int, error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	if len(messages) != 1 {
		return nil, errors.New("more came than files")
	}
	return syscall.ParseUnixRights(&messages[0])
}

type oneByte []byte

// Read implements [io.Reader]: once.
func (b oneByte) Read(to []byte) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	to[0] = b[0]
	return 1, io.EOF
}
