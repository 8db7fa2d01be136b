// What rules on Go functions are tested with: it says on its output what it has called, with which values and what came of it.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type Row struct {
	Id   int32
	Tags [2]uint16
	Name string
}

type Store struct {
	name  string
	hits  int
	first *Row
}

type Key string

var asked, failed, steps, long, deep atomic64

// Counts from all goroutines.
type atomic64 struct{ n int64 }

func (a *atomic64) add() { atomic.AddInt64(&a.n, 1) }

//go:noinline
func (s *Store) query(key Key, n int, exact bool, share float64, _ int, body []byte, list []int32) (int, error) {
	asked.add()
	s.hits++
	if n%5 == 3 {
		failed.add()
		return -n, errors.New("no such row")
	}
	for _, one := range list {
		n += int(one)
	}
	return n*2 + len(body), nil
}

//go:noinline
func pair(row Row, ratio float32) (string, float64) {
	runtime.Gosched()
	return row.Name + "!", float64(ratio) * 2
}

// More than registers hold, and an array, which none does.
//
//go:noinline
func crowd(a, b, c, d, e, f, g, h, i, j int, sides [3]int) int {
	runtime.Gosched()
	return a + b + c + d + e + f + g + h + i + j + sides[0] + 10*sides[1] + 100*sides[2]
}

// It grows its stack again and again, and its argument points into it.
//
//go:noinline
func dig(n int, from *int) int {
	deep.add()
	var room [64]int
	room[n%64] = n
	if n == 0 {
		return *from
	}
	return dig(n-1, from) + room[n%64] - n
}

//go:noinline
func risky(n int) int {
	if n%4 == 1 {
		panic("risky")
	}
	return n + 1
}

//go:noinline
func guarded(n int) (r int) {
	defer func() {
		if recover() != nil {
			r = -1
		}
	}()
	return risky(n)
}

// Waits for its turn in the middle: whoever goes on with it is another thread, more often than not.
//
//go:noinline
func step(worker, turn int, in chan int) int {
	steps.add()
	if turn%10 == 9 {
		long.add()
		time.Sleep(4 * time.Millisecond)
	}
	return <-in + worker
}

//go:noinline
func work(worker, turns int, in chan int, done *sync.WaitGroup) {
	defer done.Done()
	for turn := 0; turn < turns; turn++ {
		step(worker, turn, in)
		if turn%7 == 0 {
			dig(50+turn, &turn)
		}
	}
	if worker == 1 {
		runtime.Goexit()
	}
}

func main() {
	turns, _ := strconv.Atoi(os.Args[1])
	store := &Store{name: "rows", first: &Row{7, [2]uint16{1, 2}, "first"}}
	sum := 0
	for n := 0; n < turns; n++ {
		got, err := store.query(Key("key-"+strconv.Itoa(n)), n, n%2 == 0, float64(n)/4, 5, []byte("body"), []int32{int32(n), -1})
		if err != nil {
			got--
		}
		sum += got
	}
	name, ratio := pair(Row{-3, [2]uint16{8, 9}, "row"}, 1.5)
	sum += len(name) + int(ratio)
	sum += crowd(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, [3]int{1, 2, 3})
	base := 5
	sum += dig(300, &base)
	for n := 0; n < 8; n++ {
		sum += guarded(n)
	}
	in := make(chan int)
	var done sync.WaitGroup
	const workers = 6
	for worker := 0; worker < workers; worker++ {
		done.Add(1)
		go work(worker, turns, in, &done)
	}
	for n := 0; n < workers*turns; n++ {
		in <- n
		if n%16 == 0 {
			runtime.GC()
		}
	}
	done.Wait()
	fmt.Println("asked", asked.n, "failed", failed.n, "steps", steps.n, "long", long.n, "deep", deep.n, "sum", sum)
}
