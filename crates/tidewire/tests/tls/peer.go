// A peer of Go's crypto/tls for the tests in foreign.rs. It ends when its standard input does.
//
//	go run peer.go client PORT    sends each line of its input over TLS and prints each line that comes back
//	go run peer.go resume PORT    connects twice and prints whether the second connection resumed the first
//	go run peer.go server         prints its port, then a line for each connection, and answers lines with themselves
//
// The files ca.pem, client.pem, client.key, server.pem and server.key are in the working directory.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	switch os.Args[1] {
	case "client":
		connection := connect(clientConfig(), os.Args[2])
		lines := bufio.NewReader(connection)
		input := bufio.NewScanner(os.Stdin)
		for input.Scan() {
			fmt.Println(ask(connection, lines, input.Text()))
		}
		check(connection.Close())
	case "resume":
		config := clientConfig()
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		for range 2 {
			connection := connect(config, os.Args[2])
			// A ticket comes behind the handshake.
			ask(connection, bufio.NewReader(connection), "hello")
			fmt.Println("resumed", connection.ConnectionState().DidResume)
			check(connection.Close())
		}
	case "server":
		serve()
	}
}

func clientConfig() *tls.Config {
	pair, err := tls.LoadX509KeyPair("client.pem", "client.key")
	check(err)
	return &tls.Config{
		RootCAs:      authorities(),
		Certificates: []tls.Certificate{pair},
		ServerName:   "localhost",
		NextProtos:   []string{"lines"},
		MinVersion:   tls.VersionTLS13,
	}
}

func connect(config *tls.Config, port string) *tls.Conn {
	connection, err := tls.Dial("tcp", "127.0.0.1:"+port, config)
	check(err)
	if protocol := connection.ConnectionState().NegotiatedProtocol; protocol != "lines" {
		panic("the server chose the protocol " + protocol)
	}
	return connection
}

func ask(connection *tls.Conn, lines *bufio.Reader, text string) string {
	_, err := fmt.Fprintf(connection, "%s\n", text)
	check(err)
	line, err := lines.ReadString('\n')
	check(err)
	return line[:len(line)-1]
}

func serve() {
	pair, err := tls.LoadX509KeyPair("server.pem", "server.key")
	check(err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"lines"},
		MinVersion:   tls.VersionTLS13,
	})
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			accepted, err := listener.Accept()
			check(err)
			go answer(accepted.(*tls.Conn))
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	check(err)
}

// answer returns each line to its sender. The line "end" ends the connection.
func answer(connection *tls.Conn) {
	check(connection.Handshake())
	state := connection.ConnectionState()
	fmt.Println("resumed", state.DidResume, state.NegotiatedProtocol, state.ServerName)
	lines := bufio.NewScanner(connection)
	for lines.Scan() && lines.Text() != "end" {
		fmt.Fprintf(connection, "%s\n", lines.Text())
	}
	// An end without its record would be an error here.
	check(lines.Err())
	check(connection.Close())
	fmt.Println("ended in order")
}

func authorities() *x509.CertPool {
	pem, err := os.ReadFile("ca.pem")
	check(err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		panic("no certificate in ca.pem")
	}
	return pool
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
