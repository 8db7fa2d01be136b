// Threads that wait in system calls, which is no work, beside one that works.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

//go:noinline
func sleeps(milliseconds int64) {
	for left := milliseconds; left > 0; left -= 10 {
		pause := syscall.Timespec{Nsec: 10e6}
		syscall.Nanosleep(&pause, nil)
	}
}

//go:noinline
func mixes(x uint64) uint64 {
	for i := 0; i < 1000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//go:noinline
func works(milliseconds int) uint64 {
	x := uint64(1)
	for end := time.Now().Add(time.Duration(milliseconds) * time.Millisecond); time.Now().Before(end); {
		x = mixes(x)
	}
	return x
}

func main() {
	done := make(chan bool)
	go func() {
		sleeps(400)
		done <- true
	}()
	x := works(300)
	<-done
	err := exec.Command("sleep", "0.4").Run()
	fmt.Fprintln(os.Stdout, x != 0, err)
}
