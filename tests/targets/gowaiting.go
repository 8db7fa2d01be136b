// One goroutine that waits in the midst of a function, for as long as the program runs: each line of input is a request, which it answers.
package main

import (
	"bufio"
	"fmt"
	"os"
)

var handled int

//go:noinline
func handle(request string) string {
	handled++
	return fmt.Sprint(handled, " ", request)
}

//go:noinline
func serve(requests <-chan string, answers chan<- string) {
	for request := range requests {
		answers <- handle(request)
	}
	answers <- "end"
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	requests, answers := make(chan string), make(chan string)
	fmt.Println("ready")
	for begun := false; input.Scan(); begun = true {
		if !begun {
			go serve(requests, answers)
		}
		if input.Text() == "end" {
			break
		}
		requests <- input.Text()
		fmt.Println(<-answers)
	}
	close(requests)
	fmt.Println(<-answers)
}
