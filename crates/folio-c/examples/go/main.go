// An ext4 image written and read from Go, through cgo.
//
//	go run . disk.img
package main

/*
#cgo pkg-config: folio
#include <folio.h>
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// call returns the error of a call. The caller's goroutine is locked to its thread, to which the
// last error belongs.
func call(result int64) error {
	if result >= 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", C.GoString(C.folio_last_error()), syscall.Errno(-result))
}

func run(image string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	strings := []*C.char{C.CString(image), C.CString("/"), C.CString("ext4"), C.CString("/greeting")}
	defer func() {
		for _, text := range strings {
			C.free(unsafe.Pointer(text))
		}
	}()
	name, root, ext4, path := strings[0], strings[1], strings[2], strings[3]
	if err := call(int64(C.folio_image_create(name, 32<<20, nil))); err != nil {
		return err
	}
	if err := call(int64(C.folio_mkfs_ext4(name, nil))); err != nil {
		return err
	}
	kernel := C.folio_kernel_new(nil)
	defer C.folio_kernel_free(kernel)
	if err := call(int64(C.folio_mount(kernel, name, root, ext4, 0, nil))); err != nil {
		return err
	}
	process := C.folio_process_new(kernel, 0, 0)
	defer C.folio_process_free(process)
	fd := C.folio_open(process, path, C.FOLIO_O_CREAT|C.FOLIO_O_RDWR, 0o644)
	if err := call(int64(fd)); err != nil {
		return err
	}
	greeting := []byte("Hello from Go!\n")
	written := C.folio_write(process, fd, unsafe.Pointer(&greeting[0]), C.size_t(len(greeting)))
	if err := call(int64(written)); err != nil {
		return err
	}
	found := make([]byte, 100)
	count := C.folio_pread(process, fd, unsafe.Pointer(&found[0]), C.size_t(len(found)), 0)
	if err := call(int64(count)); err != nil {
		return err
	}
	fmt.Printf("%s", found[:count])
	err := call(int64(C.folio_open(process, root, C.FOLIO_O_RDWR, 0)))
	fmt.Println("as expected:", err)
	return call(int64(C.folio_close(process, fd)))
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . IMAGE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
