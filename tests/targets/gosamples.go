// Goroutines that all work in one short function, at the end of deep stacks that grow while they are looked at.
package main

import (
	"fmt"
	"runtime"
	"sync"
)

// Takes so much of the stack that it has to ask for it.
//
//go:noinline
func leaf(x uint64) uint64 {
	var room [24]uint64
	room[x%24] = x*6364136223846793005 + 1442695040888963407
	return room[x%24] + room[0]
}

//go:noinline
func work(times int) uint64 {
	x := uint64(1)
	for i := 0; i < times; i++ {
		x = leaf(x)
	}
	return x
}

// Each step takes some of the stack.
//
//go:noinline
func deeper(steps, times int) uint64 {
	var room [64]uint64
	room[steps%64] = 1
	if steps > 0 {
		return deeper(steps-1, times) + room[0]
	}
	return work(times) + room[0]
}

//go:noinline
func shallow(times int) uint64 {
	return work(times) + 1
}

func main() {
	runtime.GOMAXPROCS(2)
	var all sync.WaitGroup
	sums := make([]uint64, 4)
	for i := range sums {
		all.Add(1)
		go func(i int) {
			for round := 0; round < 60; round++ {
				sums[i] += deeper(30, 300_000)
				sums[i] += shallow(100_000)
				runtime.Gosched()
			}
			all.Done()
		}(i)
	}
	all.Wait()
	fmt.Println(sums)
}
