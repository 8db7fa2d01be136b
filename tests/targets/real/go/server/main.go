// An HTTP server whose handlers start goroutines, grow their stacks and make garbage. Its argument is the address.
package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
)

func deep(n int, values [40]int) int {
	if n == 0 {
		return values[0]
	}
	values[n%40]++
	return deep(n-1, values) + 1
}

func handle(writer http.ResponseWriter, request *http.Request) {
	digits := strings.Split(fmt.Sprintf("%x", sha256.Sum256([]byte(request.URL.Path))), "")
	sort.Strings(digits)
	depths := make(chan int, 3)
	for i := 0; i < 3; i++ {
		go func(i int) { depths <- deep(50*i, [40]int{}) }(i)
	}
	total := <-depths + <-depths + <-depths
	names := make(map[string]int)
	for i := 0; i < 20; i++ {
		names[fmt.Sprint(i)] = i
	}
	fmt.Fprintf(writer, "%s %d %d\n", strings.Join(digits, ""), total, len(names))
}

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go func() { <-end; os.Exit(0) }()
	http.HandleFunc("/", handle)
	fmt.Println(http.ListenAndServe(os.Args[1], nil))
	os.Exit(1)
}
