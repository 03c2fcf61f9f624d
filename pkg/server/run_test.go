package server

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	lapsev1 "lapse/api/lapse/v1"
)

func TestHealthFollowsReadiness(t *testing.T) {
	r := start(t)
	health := healthpb.NewHealthClient(r.conn)
	for _, service := range []string{"", "lapse.v1.OrderService"} {
		for _, ready := range []bool{false, true, false} {
			r.srv.SetReady(ready)
			got, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil || (got.GetStatus() == healthpb.HealthCheckResponse_SERVING) != ready {
				t.Errorf("service %q, ready %v: %v, %v", service, ready, got, err)
			}
		}
	}
	_, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "nothing"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
}

func TestReflectionListsTheContract(t *testing.T) {
	r := start(t)
	stream, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(ask); err != nil {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	if err != nil || !strings.Contains(got.String(), "lapse.v1.OrderService") {
		t.Errorf("services %v, %v", got, err)
	}
}

// A watch never ends by itself and outlives the server's time-outs; stopping must not wait for it.
func TestHealthWatchOutlivesTimeoutsAndEndsWithTheServer(t *testing.T) {
	r := start(t, func(o *Options) {
		o.ReadTimeout, o.WriteTimeout, o.ShutdownTimeout = 50*time.Millisecond, 50*time.Millisecond, time.Minute
	})
	watch, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("first: %v, %v", first, err)
	}
	time.AfterFunc(200*time.Millisecond, func() { r.srv.SetReady(true) }) // well past both time-outs
	if next, err := watch.Recv(); err != nil || next.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("next: %v, %v", next, err)
	}
	r.stop()
	for err == nil {
		_, err = watch.Recv()
	}
	if err := <-r.done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestBodiesThatAreTooLarge(t *testing.T) {
	r := start(t)
	huge := `{"user_id":"` + strings.Repeat("x", maxBody) + `"}`
	r.send("POST", "/v1/orders", orderToken, huge).wantProblem(t, 413, "body_too_large")
	req, err := http.NewRequest(http.MethodPost, "http://"+r.srv.Addr()+"/v1/orders", io.MultiReader(strings.NewReader(huge))) // of unknown length
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+orderToken)
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of unknown length: %d", resp.StatusCode)
	}
	_, err = lapsev1.NewOrderServiceClient(r.conn).CreateOrder(as(t, orderToken), &lapsev1.CreateOrderRequest{UserId: huge})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("gRPC: %v", err)
	}
	fits := `{"user_id":"` + strings.Repeat("x", maxBody-14) + `"}`
	r.send("POST", "/v1/orders", orderToken, fits).wantProblem(t, 400, "invalid_argument")
}

func TestBodyThatDoesNotCome(t *testing.T) {
	r := start(t, func(o *Options) { o.ReadTimeout = 50 * time.Millisecond })
	conn := r.dial()
	fmt.Fprintf(conn, "POST /v1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 10\r\n\r\n{", orderToken)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestBodyThatEndsTooEarly(t *testing.T) {
	r := start(t)
	conn := r.dial()
	fmt.Fprintf(conn, "POST /v1/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 10\r\n\r\n{", orderToken)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// dial opens a bare connection for one test.
func (r *running) dial() net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.srv.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

// S08: clients that never finish their header or their body cost others nothing, and are hung up on.
func TestSlowClientsDoNotKeepOthersWaiting(t *testing.T) {
	r := start(t, func(o *Options) { o.ReadHeaderTimeout, o.ReadTimeout = 2*time.Second, 2*time.Second })
	slow := make([]net.Conn, 500)
	for i := range slow {
		slow[i] = r.dial()
		fmt.Fprint(slow[i], "POST /v1/orders HTTP/1.1\r\nHost: x\r\n")
		if i%2 == 0 {
			fmt.Fprintf(slow[i], "Authorization: Bearer %s\r\nContent-Length: 100\r\n\r\n", orderToken)
		}
	}
	r.send("POST", "/v1/orders", orderToken, draftJSON).want(t, 200)
	for _, conn := range slow {
		if _, err := io.Copy(io.Discard, conn); err != nil { // ends once the server hangs up
			t.Fatal(err)
		}
	}
}

func TestHeadersThatAreTooLarge(t *testing.T) {
	r := start(t)
	r.send("GET", "/v1/orders/order-1", orderToken, "", "X-Large", strings.Repeat("x", 64<<10)).want(t, 431)
}

func TestACallThatHangsIsGivenUp(t *testing.T) {
	r := start(t, func(o *Options) { o.CallTimeout = 50 * time.Millisecond })
	r.mem.hold = make(chan struct{})
	r.send("GET", "/v1/orders/order-1", orderToken, "").wantProblem(t, 503, "timed_out")
	_, err := lapsev1.NewOrderServiceClient(r.conn).GetOrder(as(t, orderToken), &lapsev1.GetOrderRequest{OrderNo: "order-1"})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("gRPC: %v", err)
	}
}

func TestWhatHasMuchToDoMayTakeLongerThanAnyTimeout(t *testing.T) {
	short := 50 * time.Millisecond
	r := start(t, func(o *Options) { o.CallTimeout, o.ReadTimeout, o.WriteTimeout = short, short, short })
	slowly := func() {
		r.mem.hold = make(chan struct{})
		time.AfterFunc(4*short, func() { close(r.mem.hold) })
	}
	for path, body := range map[string]string{
		"/v1/sweeps": "", "/v1/reconciliations": "", "/v1/orders:extend": `{"user_id":"u1","by":"1s","reason":"why"}`,
	} {
		slowly()
		r.send("POST", path, operatorToken, body).want(t, 200)
	}
	slowly()
	r.send("GET", "/v1/shadow-report", operatorToken, "").want(t, 200)
	operator := lapsev1.NewOperatorServiceClient(r.conn)
	slowly()
	if _, err := operator.Sweep(as(t, operatorToken), &lapsev1.SweepRequest{}); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	slowly()
	if _, err := operator.Reconcile(as(t, operatorToken), &lapsev1.ReconcileRequest{}); err != nil {
		t.Errorf("gRPC: %v", err)
	}
}

func TestStopLetsCallsInFlightEnd(t *testing.T) {
	r := start(t, func(o *Options) { o.ShutdownTimeout = time.Minute })
	r.mem.hold = make(chan struct{})
	grpcDone := make(chan error, 1)
	go func() {
		_, err := lapsev1.NewOrderServiceClient(r.conn).GetOrder(as(t, orderToken), &lapsev1.GetOrderRequest{OrderNo: "order-1"})
		grpcDone <- err
	}()
	httpDone := make(chan answer, 1)
	go func() { httpDone <- r.send("GET", "/v1/orders/order-1", orderToken, "") }()
	<-r.mem.entered
	<-r.mem.entered
	r.stop()
	<-r.srv.stopping.Done()
	close(r.mem.hold)
	if err := <-grpcDone; status.Code(err) != codes.NotFound {
		t.Errorf("gRPC: %v", err)
	}
	(<-httpDone).wantProblem(t, 404, "order_not_found")
	if err := <-r.done; err != nil {
		t.Errorf("stop: %v", err)
	}
	if conn, err := net.Dial("tcp", r.srv.Addr()); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}

func TestASweepDoesNotHoldUpTheStop(t *testing.T) {
	r := start(t, func(o *Options) { o.ShutdownTimeout = time.Minute })
	r.mem.hold = make(chan struct{}) // never closed: only the end of its context ends the sweep
	done := make(chan error, 1)
	go func() {
		_, err := lapsev1.NewOperatorServiceClient(r.conn).Sweep(as(t, operatorToken), &lapsev1.SweepRequest{})
		done <- err
	}()
	httpDone := make(chan answer, 1)
	go func() { httpDone <- r.send("POST", "/v1/sweeps", operatorToken, "") }()
	<-r.mem.entered
	<-r.mem.entered
	r.stop()
	if err := <-done; status.Code(err) != codes.Unavailable {
		t.Errorf("gRPC: %v", err)
	}
	(<-httpDone).wantProblem(t, 503, "timed_out")
	if err := <-r.done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestConnectionsThatNeverAskedDoNotHoldUpTheStop(t *testing.T) {
	r := start(t, func(o *Options) { o.ShutdownTimeout = time.Second })
	for range 3 {
		defer r.dial().Close()
	}
	r.send("GET", "/v1/orders/order-1", orderToken, "").want(t, 404)
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestStopHasABound(t *testing.T) {
	r := start(t, func(o *Options) { o.ShutdownTimeout = 50 * time.Millisecond })
	r.mem.hold = make(chan struct{})
	cut := make(chan error, 1)
	go func() {
		_, err := lapsev1.NewOrderServiceClient(r.conn).GetOrder(as(t, orderToken), &lapsev1.GetOrderRequest{OrderNo: "order-1"})
		cut <- err
	}()
	<-r.mem.entered
	r.stop()
	if err := <-r.done; err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("stop: %v", err)
	}
	if err := <-cut; status.Code(err) != codes.Unavailable {
		t.Errorf("the hanging call: %v", err)
	}
}

func TestStartAndStopUnderLoad(t *testing.T) {
	for range 30 {
		r := start(t)
		r.srv.SetReady(true)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if i%2 == 0 {
						healthpb.NewHealthClient(r.conn).Check(ctx, &healthpb.HealthCheckRequest{}) //nolint:errcheck // the server may be gone
						continue
					}
					if resp, err := r.http.Get("http://" + r.srv.Addr() + openAPIPath); err == nil {
						io.Copy(io.Discard, resp.Body) //nolint:errcheck // as above
						resp.Body.Close()
					}
				}
			})
		}
		r.send("GET", "/v1/orders/order-1", orderToken, "").want(t, 404)
		r.stop()
		if err := <-r.done; err != nil {
			t.Errorf("stop: %v", err)
		}
		cancel()
		wg.Wait()
	}
}

func TestNewRefusesWhatCannotRun(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	reg := prometheus.NewRegistry()
	for name, change := range map[string]func(*Options){
		"a port in use":          func(o *Options) { o.Addr = taken.Addr().String() },
		"a short token":          func(o *Options) { o.Tokens[0].Token = "short" },
		"a token without a name": func(o *Options) { o.Tokens[0].Name = "" },
		"a long name":            func(o *Options) { o.Tokens[0].Name = strings.Repeat("é", 33) },
		"a name of two lines":    func(o *Options) { o.Tokens[0].Name = "a\nb" },
		"a name that ends blank": func(o *Options) { o.Tokens[0].Name = "a " },
		"a short payment secret": func(o *Options) { o.PaymentSecrets[0] = "short" },
	} {
		opts := testOptions()
		change(&opts)
		if _, err := New(opts, Services{}, zap.NewNop(), prometheus.NewRegistry()); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	first, err := New(testOptions(), Services{}, zap.NewNop(), reg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(testOptions(), Services{}, zap.NewNop(), reg); err == nil {
		t.Error("two servers share one registry")
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Run(done); err != nil {
		t.Errorf("closing a server that never ran: %v", err)
	}
}

func TestRunReportsAListenerThatBroke(t *testing.T) {
	s, err := New(testOptions(), Services{}, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s.listener.Close()
	if err := s.Run(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestBothFacesOverTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	r := start(t, func(o *Options) { o.TLS = &tls.Config{Certificates: []tls.Certificate{cert}} })
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("https://" + r.srv.Addr() + openAPIPath)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Errorf("status %d over HTTP/%d", resp.StatusCode, resp.ProtoMajor)
	}
	conn, err := grpc.NewClient(r.srv.Addr(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(pool, "")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if resp, err := r.http.Get("http://" + r.srv.Addr() + openAPIPath); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("plain text is served beside TLS")
		}
	}
}

// selfSigned makes a certificate for 127.0.0.1 and the pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
