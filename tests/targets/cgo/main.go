// Go and C calling each other, each counting its own calls; and a thread that C made, which calls into Go. The first argument is how many rounds it
// makes, or "-": until there is a line of input. With a second one it waits for a line before it begins.
package main

/*
#include <stdint.h>

int c_around(int n);
int c_in_thread(int n);
uint64_t c_count(int i);
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

var backs, outs, locked uint64

//export goBack
func goBack(n C.int) C.int {
	return C.int(back(int(n)))
}

//go:noinline
func back(n int) int {
	atomic.AddUint64(&backs, 1)
	if n%5 == 0 {
		runtime.Gosched()
	}
	if n%7 == 0 {
		runtime.GC()
	}
	return n + out(n)
}

//go:noinline
func out(n int) int {
	atomic.AddUint64(&outs, 1)
	return int(C.c_around(C.int(n)))
}

//go:noinline
func onOneThread(n int) int {
	atomic.AddUint64(&locked, 1)
	runtime.LockOSThread()
	return out(n)
}

func main() {
	input := bufio.NewReader(os.Stdin)
	if len(os.Args) > 2 {
		fmt.Println("ready")
		input.ReadString('\n')
	}
	var stop uint32
	rounds := 20
	if len(os.Args) > 1 && os.Args[1] == "-" {
		rounds = 1 << 30
		go func() {
			input.ReadString('\n')
			atomic.StoreUint32(&stop, 1)
		}()
	} else if len(os.Args) > 1 {
		fmt.Sscan(os.Args[1], &rounds)
	}
	var answer, expected int64
	for i := 0; i < rounds && atomic.LoadUint32(&stop) == 0; i++ {
		var wg sync.WaitGroup
		run := func(f func() int) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				atomic.AddInt64(&answer, int64(f()))
			}()
		}
		for k := 0; k < 4; k++ {
			run(func() int { return out(6) })
			run(func() int { return int(C.c_in_thread(4)) })
		}
		run(func() int { return onOneThread(3) })
		wg.Wait()
		if i == 0 {
			expected = answer
		}
		if answer != expected*int64(i+1) {
			panic(fmt.Sprint("wrong answer ", answer, expected, i))
		}
	}
	fmt.Println("answer", answer)
	fmt.Println("main.back", backs)
	fmt.Println("main.out", outs)
	fmt.Println("main.onOneThread", locked)
	fmt.Println("c_leaf", C.c_count(0))
	fmt.Println("c_around", C.c_count(1))
	fmt.Println("c_thread", C.c_count(2))
}
