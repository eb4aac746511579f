// Goroutines, recursion, interfaces, panics that are recovered: subjects.py says who calls whom.
package main

import (
	"os"
	"strconv"
	"time"
)

type shape interface{ area(int) int }
type square struct{}
type circle struct{}

var sink int

//go:noinline
func (square) area(n int) int { return leaf(n) + 1 }

//go:noinline
func (circle) area(n int) int { return deep(n%5) + 1 }

//go:noinline
func leaf(n int) int {
	sum := 0
	for i := 0; i < n%64+100; i++ {
		sum += i ^ sink
	}
	return sum
}

//go:noinline
func deep(depth int) int {
	if depth > 0 {
		return deep(depth-1) + 1
	}
	return leaf(9) + 1
}

//go:noinline
func panics(n int) int { panic(n) }

//go:noinline
func recovers(n int) (result int) {
	defer func() { recover(); result = 1 }()
	return panics(n) + 1
}

//go:noinline
func work(n int) int {
	shapes := [2]shape{square{}, circle{}}
	sum := shapes[n%2].area(n)
	if n%8 == 0 {
		sum += recovers(n)
	}
	return sum + 1
}

//go:noinline
func inGoroutine(done chan bool, end time.Time) {
	for n := 0; time.Now().Before(end); n++ {
		sink = work(n)
	}
	done <- true
}

func main() {
	seconds := 1.0
	if len(os.Args) > 1 {
		seconds, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	end, done := time.Now().Add(time.Duration(seconds*1e9)), make(chan bool)
	go inGoroutine(done, end)
	inGoroutine(make(chan bool, 1), end)
	<-done
}
