// Asks an HTTP server from eight goroutines for some seconds; prints how many answers came, or what was wrong with one.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func ask(url string) string {
	response, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[3])
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var group sync.WaitGroup
	var lock sync.Mutex
	count := 0
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(end) {
				if answer := ask(os.Args[1]); answer != os.Args[2]+"\n" {
					fmt.Printf("wrong answer: %q\n", answer)
					os.Exit(1)
				}
				lock.Lock()
				count++
				lock.Unlock()
			}
		}()
	}
	group.Wait()
	fmt.Println(count)
}
