// Command healthcheck asks a Lapse process in the same container whether it is ready, since the image has no shell
// or curl to do it with. Exit status 0 means ready, also with a broker that is away: what is to be sent waits.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"
)

func main() {
	url := "http://127.0.0.1:9090/readyz"
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	client := &http.Client{Timeout: 4 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, url, "answers", resp.Status)
		os.Exit(1)
	}
}
