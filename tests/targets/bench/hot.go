// hot [SECONDS]: four goroutines call functions that are short, again and again: they sort, walk a tree, recurse, and write and read JSON. Prints the
// processor time of a round in seconds, measured after the first second.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"syscall"
)

type entry struct {
	Name   string
	Number int
	Tags   []string
}

type byNumber []entry

func (all byNumber) Len() int           { return len(all) }
func (all byNumber) Less(i, j int) bool { return all[i].Number < all[j].Number }
func (all byNumber) Swap(i, j int)      { all[i], all[j] = all[j], all[i] }

type tree struct {
	left, right *tree
	entry       entry
}

func (t *tree) insert(e entry) *tree {
	if t == nil {
		return &tree{entry: e}
	}
	if e.Number < t.entry.Number {
		t.left = t.left.insert(e)
	} else {
		t.right = t.right.insert(e)
	}
	return t
}

func (t *tree) sum() int {
	if t == nil {
		return 0
	}
	return t.left.sum() + t.entry.Number + t.right.sum()
}

//go:noinline
func fibonacci(n int) int {
	if n < 2 {
		return n
	}
	return fibonacci(n-1) + fibonacci(n-2)
}

func work(seed int) int {
	all := make([]entry, 200)
	for i := range all {
		seed = seed * 1103515245 % 1000003
		all[i] = entry{fmt.Sprint("entry", seed), seed, []string{"a", strings.Repeat("b", i%5)}}
	}
	var root *tree
	for _, e := range all {
		root = root.insert(e)
	}
	sum := root.sum()
	sort.Sort(byNumber(all))
	text, err := json.Marshal(all[:40])
	var back []entry
	if err != nil || json.Unmarshal(text, &back) != nil || len(back) != 40 {
		panic("what was written is not what is read")
	}
	for _, e := range all {
		sum -= e.Number
	}
	return sum + fibonacci(16) - 987 + back[0].Number - all[0].Number
}

func used() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	time := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return time(usage.Utime) + time(usage.Stime)
}

func round(number int) {
	var all sync.WaitGroup
	for i := 1; i <= 4; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			for k := 1; k <= 5; k++ {
				if work(number*20+i*5+k) != 0 {
					panic("a wrong sum")
				}
			}
		}(i)
	}
	all.Wait()
}

func main() {
	seconds := 3.0
	if len(os.Args) > 1 {
		fmt.Sscan(os.Args[1], &seconds)
	}
	start, since, rounds := used(), 0.0, 0
	for number := 1; ; number++ {
		round(number)
		rounds++
		now := used()
		if since == 0 && now-start > 1 {
			since, rounds = now, 0
		} else if since > 0 && now-since > seconds {
			fmt.Printf("%.9f\n", (now-since)/float64(rounds))
			return
		}
	}
}
