// Command healthcheck asks a Lapse process in the same container whether it is ready, since the image has no shell
// or curl to do it with. Exit status 0 means ready, also with a broker that is away: what is to be sent waits.
package main

import (
	"context"
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
	if err := ask(url); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ask returns nil if url answers 200 within four seconds.
func ask(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil) //nolint:gosec // whoever starts it says where to look
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req) //nolint:gosec // as above
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}
