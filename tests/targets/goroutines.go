// Counts its own calls, function by function, while it does what goroutines do: many of them, on stacks that grow, blocked, preempted,
// collected, ended by panics. Checks every answer and prints the counts. The first argument is how many rounds it makes, or "-": until there is a line
// of input, and after another one it ends. With a second argument it waits for a line before it begins.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

type counter struct {
	name  string
	calls uint64
}

var counters []*counter

func named(name string) *counter {
	c := &counter{name: name}
	counters = append(counters, c)
	return c
}

var (
	cRecurse  = named("main.recurse")
	cBusy     = named("main.busy")
	cProduce  = named("main.produce")
	cConsume  = named("main.consume")
	cThrow    = named("main.throw")
	cCatch    = named("main.catch")
	cUnwind   = named("main.unwind")
	cGoexit   = named("main.leave")
	cMethod   = named("main.(*node).insert")
	cArea     = named("main.square.area")
	cDeferred = named("main.deferring")
	cBig      = named("main.bigFrame")
	cPing     = named("main.ping")
	cVisit    = named("main.visit")
	cSelect   = named("main.selecting")
)

func (c *counter) hit() { atomic.AddUint64(&c.calls, 1) }

// Calls that are seen keep a function from being a leaf.
var sink uint64

//go:noinline
func keep(x uint64) uint64 {
	if x == ^uint64(0) {
		panic("never")
	}
	return atomic.AddUint64(&sink, x&1)
}

// Each level needs another piece of stack.
//
//go:noinline
func recurse(n int) int {
	cRecurse.hit()
	var pad [16]int
	pad[n&15] = n
	if n == 0 {
		return pad[0]
	}
	return recurse(n-1) + pad[n&15] - pad[(n+1)&15]
}

// Has no calls in its loop: only a signal can stop it.
//
//go:noinline
func busy(n int) int {
	cBusy.hit()
	x := n
	for i := 0; i < 200000; i++ {
		x = x*1664525 + 1013904223
	}
	keep(uint64(x))
	return x
}

//go:noinline
func produce(out chan<- int, n int) {
	cProduce.hit()
	for i := 0; i < n; i++ {
		out <- i
	}
	close(out)
}

//go:noinline
func consume(in <-chan int) int {
	cConsume.hit()
	sum := 0
	for v := range in {
		sum += visit(v)
	}
	return sum
}

//go:noinline
func visit(v int) int {
	cVisit.hit()
	keep(uint64(v))
	return v
}

//go:noinline
func throw(depth int) {
	cThrow.hit()
	if depth == 0 {
		panic("thrown")
	}
	throw(depth - 1)
	keep(1)
}

//go:noinline
func catch(depth int) (caught bool) {
	cCatch.hit()
	defer func() {
		if r := recover(); r != nil {
			caught = true
		}
	}()
	throw(depth)
	return false
}

// A nil pointer is dereferenced in a callee.
//
//go:noinline
func unwind(n *node) (what string) {
	cUnwind.hit()
	defer func() { what = fmt.Sprint(recover()) }()
	keep(uint64(n.key))
	return "nothing"
}

//go:noinline
func leave(wg *sync.WaitGroup) {
	cGoexit.hit()
	defer wg.Done()
	keep(2)
	runtime.Goexit()
}

type node struct {
	key         int
	left, right *node
}

func (n *node) insert(key int) *node {
	cMethod.hit()
	if n == nil {
		return &node{key: key}
	}
	if key < n.key {
		n.left = n.left.insert(key)
	} else {
		n.right = n.right.insert(key)
	}
	return n
}

type shape interface{ area() int }
type square struct{ side int }

//go:noinline
func (s square) area() int {
	cArea.hit()
	keep(uint64(s.side))
	return s.side * s.side
}

//go:noinline
func deferring(n int) (sum int) {
	cDeferred.hit()
	for i := 0; i < n; i++ {
		defer func(i int) { sum += i }(i)
	}
	return 0
}

//go:noinline
func bigFrame(n int) byte {
	cBig.hit()
	var room [9000]byte
	room[n%len(room)] = byte(n)
	keep(uint64(room[(n+1)%len(room)]))
	return room[n%len(room)]
}

//go:noinline
func ping(in, out chan int, n int) {
	cPing.hit()
	for i := 0; i < n; i++ {
		out <- <-in + 1
	}
}

//go:noinline
func selecting(a, b chan int, n int) int {
	cSelect.hit()
	sum := 0
	for i := 0; i < n; i++ {
		select {
		case v := <-a:
			sum += v
		case v := <-b:
			sum += v
		default:
			runtime.Gosched()
		}
	}
	return sum
}

func apply[T any](items []T, f func(T) int) int {
	sum := 0
	for _, item := range items {
		sum += f(item)
	}
	return sum
}

func round(id int, answers *[16]int64) {
	var wg sync.WaitGroup
	run := func(slot int, f func() int) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			atomic.AddInt64(&answers[slot], int64(f()))
		}()
	}
	for i := 0; i < 8; i++ {
		run(0, func() int { return recurse(2000 + id) })
	}
	run(1, func() int { return busy(id) })
	run(1, func() int { return busy(id + 1) })
	for i := 0; i < 4; i++ {
		pipe := make(chan int, i)
		run(2, func() int { produce(pipe, 500); return 0 })
		run(2, func() int { return consume(pipe) })
	}
	run(3, func() int {
		n := 0
		for i := 0; i < 50; i++ {
			if catch(i % 7) {
				n++
			}
		}
		return n
	})
	run(4, func() int { return len(unwind(nil)) })
	wg.Add(1)
	go leave(&wg)
	run(5, func() int {
		var root *node
		key := id + 1
		for i := 0; i < 300; i++ {
			key = key * 1103515245 % 10007
			root = root.insert(key)
		}
		return root.key
	})
	run(6, func() int {
		shapes := []shape{square{1}, square{2}, square{3}}
		method := shapes[1].area
		return apply(shapes, func(s shape) int { return s.area() }) + method()
	})
	run(7, func() int { return deferring(20) + int(bigFrame(id)) })
	there, back := make(chan int), make(chan int)
	run(8, func() int { ping(there, back, 200); return 0 })
	run(8, func() int {
		v := 0
		for i := 0; i < 200; i++ {
			there <- v
			v = <-back
		}
		return v
	})
	run(9, func() int { return selecting(make(chan int), make(chan int), 50) })
	runtime.GC()
	wg.Wait()
}

func main() {
	input := bufio.NewReader(os.Stdin)
	if len(os.Args) > 2 {
		fmt.Println("ready")
		input.ReadString('\n')
	}
	var stop uint32
	debug.SetGCPercent(1)
	runtime.GOMAXPROCS(6)
	rounds := 10
	if len(os.Args) > 1 && os.Args[1] == "-" {
		rounds = 1 << 30
		go func() {
			input.ReadString('\n')
			atomic.StoreUint32(&stop, 1)
		}()
	} else if len(os.Args) > 1 {
		fmt.Sscan(os.Args[1], &rounds)
	}
	var answers [16]int64
	for i := 0; i < rounds; i++ {
		if atomic.LoadUint32(&stop) != 0 {
			rounds = i
			break
		}
		round(i, &answers)
	}
	if answers != expected(rounds) {
		panic(fmt.Sprint("wrong answers ", answers, expected(rounds)))
	}
	fmt.Println("answers", strings.Trim(fmt.Sprint(answers), "[]"))
	sort.Slice(counters, func(i, j int) bool { return counters[i].name < counters[j].name })
	for _, c := range counters {
		fmt.Println(c.name, c.calls)
	}
	if atomic.LoadUint32(&stop) != 0 {
		fmt.Println("end")
		input.ReadString('\n')
	}
}

// What the rounds before `rounds` have to come to.
func expected(rounds int) (sums [16]int64) {
	for id := 0; id < rounds; id++ {
		n := int64(2000 + id)
		sums[0] += 8 * n * (n + 1) / 2
		for x := id; x < id+2; x++ {
			y := x
			for i := 0; i < 200000; i++ {
				y = y*1664525 + 1013904223
			}
			sums[1] += int64(y)
		}
		sums[2] += 4 * 500 * 499 / 2
		sums[3] += 50
		sums[4] += int64(len("runtime error: invalid memory address or nil pointer dereference"))
		sums[5] += int64((id + 1) * 1103515245 % 10007)
		sums[6] += 1 + 4 + 9 + 4
		sums[7] += 190 + int64(byte(id))
		sums[8] += 200
	}
	return sums
}
