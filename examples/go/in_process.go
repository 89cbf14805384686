// Runs the server inside this Go program, by cgo: starts it, sends a request to the model `repeat`, prints its
// responses, and stops the server.
//
//	CGO_CFLAGS=-I$PREFIX/include CGO_LDFLAGS="-L$PREFIX/lib -Wl,-rpath,$PREFIX/lib" GO111MODULE=off go build -o in_process
//	./in_process ../c/models
//
// Who owns what: a request belongs to the server until its release callback, a response to the receiver of its
// callback. Memory that the server reads until then is C's, because Go's may not be kept by C.
package main

/*
#cgo LDFLAGS: -ltritonserver
#include <stdlib.h>
#include "calls.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime/cgo"
	"unsafe"
)

// A call's events: responses as they come, and the return of the request.
type call struct {
	responses chan *C.TRITONSERVER_InferenceResponse
	returned  chan struct{}
}

//export responded
func responded(response *C.TRITONSERVER_InferenceResponse, isFinal C.bool, handle C.uintptr_t) {
	call := cgo.Handle(handle).Value().(*call)
	if response != nil {
		call.responses <- response
	}
	if isFinal {
		close(call.responses)
	}
}

//export returned
func returned(handle C.uintptr_t) {
	close(cgo.Handle(handle).Value().(*call).returned)
}

// Ends the program with an error of the server.
func check(err *C.TRITONSERVER_Error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, C.GoString(C.TRITONSERVER_ErrorMessage(err)))
		os.Exit(1)
	}
}

// A text of C, which is freed at the end of `use`.
func withText(text string, use func(*C.char) *C.TRITONSERVER_Error) {
	copied := C.CString(text)
	defer C.free(unsafe.Pointer(copied))
	check(use(copied))
}

// Adds an input, whose memory the caller frees once the request has been returned.
func addInput(request *C.TRITONSERVER_InferenceRequest, name string, kind C.TRITONSERVER_DataType,
	values []int32) unsafe.Pointer {
	shape := []C.int64_t{C.int64_t(len(values))}
	base := C.malloc(C.size_t(4 * len(values)))
	copy(unsafe.Slice((*int32)(base), len(values)), values)
	withText(name, func(name *C.char) *C.TRITONSERVER_Error {
		check(C.TRITONSERVER_InferenceRequestAddInput(request, name, kind, &shape[0], 1))
		return C.TRITONSERVER_InferenceRequestAppendInputData(request, name, base, C.size_t(4*len(values)),
			C.TRITONSERVER_MEMORY_CPU, 0)
	})
	return base
}

func firstOutput(response *C.TRITONSERVER_InferenceResponse) int32 {
	if err := C.TRITONSERVER_InferenceResponseError(response); err != nil {
		check(err)
	}
	var name *C.char
	var kind C.TRITONSERVER_DataType
	var shape *C.int64_t
	var dimensions C.uint64_t
	var base, userp unsafe.Pointer
	var size C.size_t
	var memory C.TRITONSERVER_MemoryType
	var device C.int64_t
	check(C.TRITONSERVER_InferenceResponseOutput(response, 0, &name, &kind, &shape, &dimensions, &base, &size, &memory,
		&device, &userp))
	return *(*int32)(base)
}

func main() {
	var options *C.TRITONSERVER_ServerOptions
	var server *C.TRITONSERVER_Server
	var allocator *C.TRITONSERVER_ResponseAllocator
	var request *C.TRITONSERVER_InferenceRequest
	check(C.TRITONSERVER_ServerOptionsNew(&options))
	withText(os.Args[1], func(path *C.char) *C.TRITONSERVER_Error {
		return C.TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, path)
	})
	// Without an option of the log nothing is logged; with this one warnings and errors are.
	check(C.TRITONSERVER_ServerOptionsSetLogInfo(options, false))
	check(C.TRITONSERVER_ServerNew(&server, options))
	check(C.TRITONSERVER_ServerOptionsDelete(options))
	check(C.new_allocator(&allocator))
	withText("repeat", func(model *C.char) *C.TRITONSERVER_Error {
		return C.TRITONSERVER_InferenceRequestNew(&request, server, model, -1)
	})
	inputs := []unsafe.Pointer{
		addInput(request, "IN", C.TRITONSERVER_TYPE_INT32, []int32{10, 20, 30}),
		addInput(request, "DELAY", C.TRITONSERVER_TYPE_UINT32, []int32{1, 1, 1}),
		addInput(request, "WAIT", C.TRITONSERVER_TYPE_UINT32, []int32{0}),
	}

	// There is room for all responses of this request: a callback must not wait for their reader.
	call := &call{make(chan *C.TRITONSERVER_InferenceResponse, 3), make(chan struct{})}
	handle := cgo.NewHandle(call)
	check(C.send_request(server, request, allocator, C.uintptr_t(handle)))
	for response := range call.responses {
		fmt.Println(firstOutput(response))
		check(C.TRITONSERVER_InferenceResponseDelete(response))
	}
	<-call.returned
	handle.Delete()
	for _, input := range inputs {
		C.free(input)
	}
	check(C.TRITONSERVER_InferenceRequestDelete(request))
	check(C.TRITONSERVER_ResponseAllocatorDelete(allocator))
	check(C.TRITONSERVER_ServerDelete(server))
}
