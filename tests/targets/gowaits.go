// Threads that wait in system calls, which is no work, beside goroutines that work and have to share two processors.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

//go:noinline
func sleeps(milliseconds int64) {
	for left := milliseconds; left > 0; left -= 10 {
		pause := syscall.Timespec{Nsec: 10e6}
		syscall.Nanosleep(&pause, nil)
	}
}

// Calls nothing for a long time: others get the processor only by force.
//
//go:noinline
func works(times int) uint64 {
	x := uint64(1)
	for i := 0; i < times; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	if x == 0 {
		panic(x)
	}
	return x
}

func processorTime() int64 {
	var usage syscall.Rusage
	syscall.Getrusage(0, &usage)
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func main() {
	runtime.GOMAXPROCS(2)
	done := make(chan uint64)
	go func() {
		sleeps(400)
		done <- 1
	}()
	before := processorTime()
	for i := 0; i < 4; i++ {
		go func() { done <- works(100_000_000) }()
	}
	for i := 0; i < 5; i++ {
		<-done
	}
	worked := processorTime() - before
	err := exec.Command("sleep", "0.4").Run()
	fmt.Fprintln(os.Stdout, worked, err)
}
