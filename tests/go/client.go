// A client in Go: grpc-go's HTTP/2 (small frames, windows of its own, HPACK with indexing) and net/http against a server.
// Runs every check and ends with status 1 and a line for the first that fails.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golang/protobuf/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The messages of proto/inference.proto that the checks need, by their field numbers.

type parameter struct {
	Bool    bool   `protobuf:"varint,1,opt,name=bool_param,proto3"`
	Int     int64  `protobuf:"varint,2,opt,name=int64_param,proto3"`
	String_ string `protobuf:"bytes,3,opt,name=string_param,proto3"`
}

type tensor struct {
	Name     string  `protobuf:"bytes,1,opt,name=name,proto3"`
	Datatype string  `protobuf:"bytes,2,opt,name=datatype,proto3"`
	Shape    []int64 `protobuf:"varint,3,rep,packed,name=shape,proto3"`
}

type inferRequest struct {
	ModelName  string                `protobuf:"bytes,1,opt,name=model_name,proto3"`
	Id         string                `protobuf:"bytes,3,opt,name=id,proto3"`
	Parameters map[string]*parameter `protobuf:"bytes,4,rep,name=parameters,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
	Inputs     []*tensor             `protobuf:"bytes,5,rep,name=inputs,proto3"`
	Raw        [][]byte              `protobuf:"bytes,7,rep,name=raw_input_contents,proto3"`
}

type inferResponse struct {
	ModelName    string                `protobuf:"bytes,1,opt,name=model_name,proto3"`
	ModelVersion string                `protobuf:"bytes,2,opt,name=model_version,proto3"`
	Id           string                `protobuf:"bytes,3,opt,name=id,proto3"`
	Parameters   map[string]*parameter `protobuf:"bytes,4,rep,name=parameters,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
	Outputs      []*tensor             `protobuf:"bytes,5,rep,name=outputs,proto3"`
	Raw          [][]byte              `protobuf:"bytes,6,rep,name=raw_output_contents,proto3"`
}

type streamResponse struct {
	Error    string         `protobuf:"bytes,1,opt,name=error_message,proto3"`
	Response *inferResponse `protobuf:"bytes,2,opt,name=infer_response,proto3"`
}

func (m *parameter) Reset()              { *m = parameter{} }
func (m *parameter) String() string      { return proto.CompactTextString(m) }
func (*parameter) ProtoMessage()         {}
func (m *tensor) Reset()                 { *m = tensor{} }
func (m *tensor) String() string         { return proto.CompactTextString(m) }
func (*tensor) ProtoMessage()            {}
func (m *inferRequest) Reset()           { *m = inferRequest{} }
func (m *inferRequest) String() string   { return proto.CompactTextString(m) }
func (*inferRequest) ProtoMessage()      {}
func (m *inferResponse) Reset()          { *m = inferResponse{} }
func (m *inferResponse) String() string  { return proto.CompactTextString(m) }
func (*inferResponse) ProtoMessage()     {}
func (m *streamResponse) Reset()         { *m = streamResponse{} }
func (m *streamResponse) String() string { return proto.CompactTextString(m) }
func (*streamResponse) ProtoMessage()    {}

const service = "/inference.GRPCInferenceService/"

var patience = 120 * time.Second

func fail(format string, values ...interface{}) {
	fmt.Printf(format+"\n", values...)
	os.Exit(1)
}

func must(err error, what string) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func expect(what string, got, wanted interface{}) {
	if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", wanted) {
		fail("%s: expected %#v, got %#v", what, wanted, got)
	}
}

func wait() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func numbers(model, id string, values ...int32) *inferRequest {
	var raw bytes.Buffer
	must(binary.Write(&raw, binary.LittleEndian, values), "encode")
	input := &tensor{Name: "INPUT0", Datatype: "INT32", Shape: []int64{int64(len(values))}}
	return &inferRequest{ModelName: model, Id: id, Inputs: []*tensor{input}, Raw: [][]byte{raw.Bytes()}}
}

func infer(ctx context.Context, conn *grpc.ClientConn, request *inferRequest, options ...grpc.CallOption) (*inferResponse, error) {
	response := new(inferResponse)
	err := conn.Invoke(ctx, service+"ModelInfer", request, response, options...)
	return response, err
}

func dial(address string) *grpc.ClientConn {
	ctx, cancel := wait()
	defer cancel()
	conn, err := grpc.DialContext(ctx, address, grpc.WithInsecure(), grpc.WithBlock())
	must(err, "connect")
	return conn
}

func checkHealth(conn *grpc.ClientConn) {
	ctx, cancel := wait()
	defer cancel()
	client := health.NewHealthClient(conn)
	for _, name := range []string{"", "inference.GRPCInferenceService"} {
		answer, err := client.Check(ctx, &health.HealthCheckRequest{Service: name})
		must(err, "health")
		expect("health", answer.Status, health.HealthCheckResponse_SERVING)
	}
	watch, err := client.Watch(ctx, &health.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	expect("Watch", status.Code(err), codes.Unimplemented)
}

func checkUnary(conn *grpc.ClientConn) {
	ctx, cancel := wait()
	defer cancel()
	for number := int32(0); number < 300; number++ {
		request := numbers("plain", strconv.Itoa(int(number)), number, -number)
		request.Parameters = map[string]*parameter{"mine": {String_: "x"}, "count": {Int: 7}}
		response, err := infer(ctx, conn, request)
		must(err, "infer")
		expect("id", response.Id, request.Id)
		expect("model", response.ModelName+"/"+response.ModelVersion, "plain/1")
		expect("shape", response.Outputs[0].Shape, []int64{2})
		expect("tensor", response.Raw, request.Raw)
		expect("parameter", response.Parameters["param1"].Int, int64(42))
	}
}

// Metadata of all kinds goes along and changes nothing; the answer's head and trailers can be read.
func checkMetadata(conn *grpc.ClientConn) {
	ctx, cancel := wait()
	defer cancel()
	pairs := []string{"x-mine", "a", "x-mine", "b", "x-bytes-bin", string([]byte{0, 1, 2, 255}), "x-long", strings.Repeat("l", 5000)}
	for number := 0; number < 40; number++ {
		// New names and values each time: the table of the header compression turns over.
		more := append(pairs, fmt.Sprintf("x-number-%d", number), strings.Repeat(strconv.Itoa(number), 60))
		var header, trailer metadata.MD
		sent := metadata.NewOutgoingContext(ctx, metadata.Pairs(more...))
		_, err := infer(sent, conn, numbers("plain", "m", 1), grpc.Header(&header), grpc.Trailer(&trailer))
		must(err, "infer with metadata")
		expect("content-type", header.Get("content-type"), []string{"application/grpc"})
		expect("trailers beside the status", len(trailer), 0)
	}
}

func checkLarge(address string) {
	conn := dial(address)
	defer conn.Close()
	ctx, cancel := wait()
	defer cancel()
	for _, size := range []int{1, 16383, 16384, 16385, 65535, 1 << 20, 9_000_001} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i ^ i>>9)
		}
		input := &tensor{Name: "INPUT0", Datatype: "UINT8", Shape: []int64{int64(size)}}
		request := &inferRequest{ModelName: "large", Inputs: []*tensor{input}, Raw: [][]byte{data}}
		response, err := infer(ctx, conn, request, grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30))
		must(err, fmt.Sprintf("%d bytes", size))
		if !bytes.Equal(response.Raw[0], data) {
			fail("%d bytes changed on their way", size)
		}
		// The client refuses what is larger than it wants; the connection goes on.
		if size > 4<<20 {
			_, err := infer(ctx, conn, request, grpc.MaxCallSendMsgSize(1<<30))
			expect("more than the client wants", status.Code(err), codes.ResourceExhausted)
			_, err = infer(ctx, conn, numbers("plain", "after", 1))
			must(err, "after an answer that was not wanted")
		}
	}
}

func openStream(ctx context.Context, conn *grpc.ClientConn) grpc.ClientStream {
	description := &grpc.StreamDesc{StreamName: "ModelStreamInfer", ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, description, service+"ModelStreamInfer")
	must(err, "open a stream")
	return stream
}

func checkStream(conn *grpc.ClientConn) {
	ctx, cancel := wait()
	defer cancel()
	stream := openStream(ctx, conn)
	const count = 500
	go func() {
		for number := 0; number < count; number++ {
			model := "plain"
			if number%10 == 9 {
				model = "absent"
			}
			if stream.SendMsg(numbers(model, strconv.Itoa(number), int32(number))) != nil {
				return // the receiver below tells why
			}
		}
		_ = stream.CloseSend()
	}()
	for number := 0; number < count; number++ {
		response := new(streamResponse)
		must(stream.RecvMsg(response), "receive on the stream")
		expect("id", response.Response.Id, strconv.Itoa(number))
		if number%10 == 9 {
			expect("error", response.Error, "Request for unknown model: 'absent' is not found")
			continue
		}
		expect("error", response.Error, "")
		expect("final", response.Response.Parameters["triton_final_response"].Bool, true)
		expect("tensor", binary.LittleEndian.Uint32(response.Response.Raw[0]), uint32(number))
	}
	expect("end of the stream", stream.RecvMsg(new(streamResponse)), io.EOF)
}

// Texts that cannot stand in a header as they are come back letter for letter.
func checkErrors(conn *grpc.ClientConn) {
	ctx, cancel := wait()
	defer cancel()
	for _, name := range []string{"absent", "100 % Gr\u00fc\u00dfe", "line\nbreak", "%41"} {
		_, err := infer(ctx, conn, numbers(name, "", 1))
		expect("code", status.Code(err), codes.NotFound)
		expect("text", status.Convert(err).Message(), "Request for unknown model: '"+name+"' is not found")
	}
	err := conn.Invoke(ctx, service+"Nothing", numbers("plain", "", 1), new(inferResponse))
	expect("unknown method", status.Code(err), codes.Unimplemented)
}

// A deadline and a cancellation end calls that wait behind a slow one, which is answered all the same.
func checkDeadlineAndCancel(conn *grpc.ClientConn) {
	ctx, cancel := wait()
	defer cancel()
	patient := make(chan error, 1)
	go func() {
		_, err := infer(ctx, conn, numbers("slow", "patient", 1))
		patient <- err
	}()
	short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	_, err := infer(short, conn, numbers("slow", "hasty", 2))
	expect("deadline", status.Code(err), codes.DeadlineExceeded)
	given, giveUp := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() {
		_, err := infer(given, conn, numbers("slow", "given up", 3))
		over <- err
	}()
	stream := openStream(given, conn)
	must(stream.SendMsg(numbers("slow", "given up too", 4)), "send on the stream")
	giveUp()
	expect("cancelled call", status.Code(<-over), codes.Canceled)
	expect("cancelled stream", status.Code(stream.RecvMsg(new(streamResponse))), codes.Canceled)
	must(<-patient, "the patient call")
	_, err = infer(ctx, conn, numbers("plain", "after", 1))
	must(err, "after a cancellation")
}

func checkMany(address string) {
	var group sync.WaitGroup
	for connection := 0; connection < 4; connection++ {
		conn := dial(address)
		defer conn.Close()
		for worker := 0; worker < 8; worker++ {
			group.Add(1)
			go func(first int32) {
				defer group.Done()
				ctx, cancel := wait()
				defer cancel()
				for number := first; number < first+100; number++ {
					request := numbers("plain", strconv.Itoa(int(number)), number)
					response, err := infer(ctx, conn, request)
					must(err, "one of many")
					expect("id", response.Id, request.Id)
					expect("tensor", response.Raw, request.Raw)
				}
			}(int32(connection*10000 + worker*1000))
		}
	}
	group.Wait()
}

// net/http: connections are kept, bodies of unknown length are chunked, a large body may wait for its 100.
func checkHTTP(address string) {
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: patience}, Timeout: patience}
	body := `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[5,6]}]}`
	url := "http://" + address + "/v2/models/plain/infer"
	reused := false
	for number := 0; number < 60; number++ {
		var reader io.Reader = strings.NewReader(body)
		if number%3 == 1 {
			reader = struct{ io.Reader }{reader} // its length is hidden: chunked
		}
		request, err := http.NewRequest("POST", url, reader)
		must(err, "a request")
		if number%3 == 2 {
			request.Header.Set("Expect", "100-continue")
		}
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
		response, err := client.Do(request.WithContext(httptrace.WithClientTrace(context.Background(), trace)))
		must(err, "POST")
		var answer struct{ Outputs []struct{ Data []int } }
		text, err := io.ReadAll(response.Body)
		must(err, "the body")
		response.Body.Close()
		expect("status", response.StatusCode, 200)
		must(json.Unmarshal(text, &answer), "the JSON")
		expect("data", answer.Outputs[0].Data, []int{5, 6})
		if number > 0 && !reused {
			fail("request %d came on a new connection", number)
		}
	}
	tail := make([]byte, 8<<20)
	for i := range tail {
		tail[i] = byte(i ^ i>>11)
	}
	head := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, len(tail), len(tail))
	for _, hidden := range []bool{false, true} {
		var reader io.Reader = bytes.NewReader(append([]byte(head), tail...))
		if hidden {
			reader = struct{ io.Reader }{reader}
		}
		request, err := http.NewRequest("POST", "http://"+address+"/v2/models/large/infer", reader)
		must(err, "a request")
		request.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
		request.Header.Set("Expect", "100-continue")
		response, err := client.Do(request)
		must(err, "POST of megabytes")
		answer, err := io.ReadAll(response.Body)
		must(err, "the body")
		response.Body.Close()
		expect("status", response.StatusCode, 200)
		length, err := strconv.Atoi(response.Header.Get("Inference-Header-Content-Length"))
		must(err, "the length of the JSON")
		if !bytes.Equal(answer[length:], tail) {
			fail("8 MiB changed on their way")
		}
	}
}

func main() {
	grpcAddress := flag.String("grpc", "", "address of the gRPC port")
	httpAddress := flag.String("http", "", "address of the HTTP port")
	flag.Parse()
	conn := dial(*grpcAddress)
	defer conn.Close()
	checkHealth(conn)
	checkUnary(conn)
	checkMetadata(conn)
	checkLarge(*grpcAddress)
	checkStream(conn)
	checkErrors(conn)
	checkDeadlineAndCancel(conn)
	checkMany(*grpcAddress)
	checkHTTP(*httpAddress)
	fmt.Println("ok")
}
