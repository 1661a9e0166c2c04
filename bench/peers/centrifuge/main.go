// Centrifuge, the engine of Centrifugo, on two nodes with nats-server between them: the suite `cluster` of the benchmark.
//
// The Go module proxy does not have Centrifugo itself. This is its engine, with a broker that does for live messages what
// Centrifugo's broker for NATS does: a subject for each channel. The publisher is at the first node. The contract is
// bench/harness/src/contract.rs.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/centrifugal/centrifuge"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"
)

type work struct {
	Subscribers  int     `json:"subscribers"`
	MessageBytes int     `json:"message_bytes"`
	RatePerSec   float64 `json:"rate_per_sec"`
}

const (
	channel = "t"
	nodes   = 2
	tick    = time.Millisecond
	// How long the subscriptions of all nodes may take to reach the broker.
	later = 500 * time.Millisecond
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "describe":
		return say(map[string]any{
			"name":    "centrifuge",
			"version": version(),
			"offers": []any{map[string]any{
				"suite": "cluster", "transports": []string{"tcp"}, "driver": "centrifuge",
			}},
		})
	case len(arguments) == 2 && arguments[0] == "serve":
		var work work
		if err := json.Unmarshal([]byte(arguments[1]), &work); err != nil {
			return err
		}
		return serve(work)
	}
	return errors.New("usage: centrifuge describe | serve WORK")
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/centrifugal/centrifuge" {
			return module.Version[1:]
		}
	}
	return "unknown"
}

func say(line any) error { return json.NewEncoder(os.Stdout).Encode(line) }

func serve(work work) error {
	address, stop, err := startNats()
	if err != nil {
		return err
	}
	defer stop()
	var subscribed atomic.Int64
	all := make(chan struct{})
	connected := func() {
		if subscribed.Add(1) == int64(work.Subscribers) {
			close(all)
		}
	}
	var first *centrifuge.Node
	addresses := ""
	for number := 0; number < nodes; number++ {
		node, listening, err := startNode(address, connected)
		if err != nil {
			return err
		}
		if first == nil {
			first = node
		} else {
			addresses += ","
		}
		addresses += "tcp://" + listening
	}
	var published atomic.Uint64
	go func() {
		<-all
		time.Sleep(later)
		publish(first, work, &published)
	}()
	if err := say(map[string]any{"ready": addresses}); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := say(map[string]any{"messages": published.Load()}); err != nil {
			return err
		}
	}
	return nil
}

// Publishes what is due by the rate, every millisecond, as all publishers of the benchmark do.
func publish(node *centrifuge.Node, work work, published *atomic.Uint64) {
	start := now()
	payload := make([]byte, work.MessageBytes)
	for at := 16; at < len(payload); at++ {
		payload[at] = 0x5a
	}
	due := func(sequence uint64) int64 { return start + int64(float64(sequence+1)/work.RatePerSec*1e9) }
	for sequence := uint64(0); ; {
		// In turns of at most 10 ms of the rate.
		for end := sequence + uint64(work.RatePerSec/100) + 1; sequence < end && due(sequence) <= now(); sequence++ {
			binary.LittleEndian.PutUint64(payload, sequence)
			binary.LittleEndian.PutUint64(payload[8:], uint64(due(sequence)))
			if _, err := node.Publish(channel, payload); err != nil {
				// The subscriber counts it as lost.
				fmt.Fprintln(os.Stderr, "cannot publish:", err)
			}
			published.Store(sequence + 1)
		}
		if due(sequence) > now() {
			time.Sleep(tick)
		}
	}
}

// The clock of the contract.
func now() int64 {
	var time unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &time)
	return time.Nano()
}

func startNode(address string, connected func()) (*centrifuge.Node, string, error) {
	node, err := centrifuge.New(centrifuge.Config{
		// By default a client that is 1 MiB behind is cut off, which is a loss.
		ClientQueueMaxSize: 1 << 30,
	})
	if err != nil {
		return nil, "", err
	}
	// Centrifugo's own client of NATS has these settings, too: messages are written in batches.
	connection, err := nats.Connect(address, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1))
	if err != nil {
		return nil, "", err
	}
	node.SetBroker(&broker{connection: connection, subscriptions: map[string]*nats.Subscription{}})
	node.OnConnecting(connecting)
	node.OnConnect(func(*centrifuge.Client) { connected() })
	if err := node.Run(); err != nil {
		return nil, "", err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	handler := centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{
		PingPongConfig: centrifuge.PingPongConfig{PingInterval: -1},
		CheckOrigin:    func(*http.Request) bool { return true },
	})
	go func() {
		err := http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
			request.URL.RawQuery = "cf_protocol=protobuf"
			handler.ServeHTTP(answer, request)
		}))
		fmt.Fprintln(os.Stderr, "the server ended:", err)
		os.Exit(1)
	}()
	return node, listener.Addr().String(), nil
}

// Batches of 5 ms, the settings for throughput, as Tidewire has them by default.
func connecting(_ context.Context, _ centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
	return centrifuge.ConnectReply{
		Credentials:        &centrifuge.Credentials{UserID: "u"},
		Subscriptions:      map[string]centrifuge.SubscribeOptions{channel: {}},
		WriteDelay:         5 * time.Millisecond,
		MaxMessagesInFrame: 1024,
	}, nil
}

// A broker without history: publications go through NATS, and from there to every node with subscribers.
type broker struct {
	connection    *nats.Conn
	events        centrifuge.BrokerEventHandler
	lock          sync.Mutex
	subscriptions map[string]*nats.Subscription
}

func (b *broker) RegisterBrokerEventHandler(events centrifuge.BrokerEventHandler) error {
	b.events = events
	return nil
}

func (b *broker) Subscribe(channels ...string) error {
	b.lock.Lock()
	defer b.lock.Unlock()
	for _, name := range channels {
		if b.subscriptions[name] != nil {
			continue
		}
		subscription, err := b.connection.Subscribe(name, func(message *nats.Msg) {
			publication := &centrifuge.Publication{Data: message.Data}
			_ = b.events.HandlePublication(name, publication, centrifuge.StreamPosition{}, false, nil)
		})
		if err != nil {
			return err
		}
		// By default a node that is 500,000 messages behind loses some.
		if err := subscription.SetPendingLimits(-1, -1); err != nil {
			return err
		}
		b.subscriptions[name] = subscription
	}
	return b.connection.Flush()
}

func (b *broker) Unsubscribe(channels ...string) error {
	b.lock.Lock()
	defer b.lock.Unlock()
	for _, name := range channels {
		if subscription := b.subscriptions[name]; subscription != nil {
			_ = subscription.Unsubscribe()
			delete(b.subscriptions, name)
		}
	}
	return nil
}

func (b *broker) Publish(name string, data []byte, _ centrifuge.PublishOptions) (centrifuge.PublishResult, error) {
	return centrifuge.PublishResult{}, b.connection.Publish(name, data)
}

func (b *broker) PublishJoin(string, *centrifuge.ClientInfo) error  { return nil }
func (b *broker) PublishLeave(string, *centrifuge.ClientInfo) error { return nil }
func (b *broker) RemoveHistory(string) error                        { return centrifuge.ErrorNotAvailable }
func (b *broker) History(string, centrifuge.HistoryOptions) ([]*centrifuge.Publication, centrifuge.StreamPosition, error) {
	return nil, centrifuge.StreamPosition{}, centrifuge.ErrorNotAvailable
}

// Starts the nats-server that `bench/peers/setup nats` builds, with the benchmark's settings.
func startNats() (string, func(), error) {
	this, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	peers := filepath.Dir(filepath.Dir(this))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	listener.Close()
	server := exec.Command(filepath.Join(peers, "tools", "nats-server"),
		"--addr", "127.0.0.1", "--port", port, "--config", filepath.Join(peers, "nats", "nats.conf"), "--log", "/dev/null")
	if err := server.Start(); err != nil {
		return "", nil, fmt.Errorf("cannot start nats-server, which `bench/peers/setup nats` builds: %w", err)
	}
	stop := func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if connection, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			connection.Close()
			return "nats://127.0.0.1:" + port, stop, nil
		}
	}
	stop()
	return "", nil, errors.New("nats-server did not start")
}
