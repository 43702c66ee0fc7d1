// A client of the benchmark of Cutovers that resolves as Go does, without the C library.
//
// Usage: client PORT PAUSE NAME...
//
// Every PAUSE milliseconds it asks the next NAME: it opens a connection, sends a line and reads a line. When its input ends, it
// prints the numbers of requests and of those that failed.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// For a request: a machine that stands still for a while fails nothing.
const patience = 25 * time.Second

func ask(name, port string) error {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(name, port), patience)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(connection, "?\n"); err != nil {
		return err
	}
	_, err = bufio.NewReader(connection).ReadString('\n')
	return err
}

func main() {
	if len(os.Args) < 4 {
		os.Exit(2)
	}
	port, names := os.Args[1], os.Args[3:]
	pause, err := strconv.Atoi(os.Args[2])
	if err != nil {
		os.Exit(2)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	requests, failed := 0, 0
	for {
		select {
		case <-ended:
			fmt.Println(requests, failed)
			return
		case <-time.After(time.Duration(pause) * time.Millisecond):
		}
		name := names[requests%len(names)]
		requests++
		if err := ask(name, port); err != nil {
			failed++
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
	}
}
