// Go that calls C, which calls Go: each on a stack of its own.
package main

/*
#define KEPT __attribute__((noinline))
extern int goBack(int);
static volatile unsigned long done;
KEPT static int c_leaf(int n) { for (volatile int i = 0; i < n % 64 + 100; i++) done++; return n; }
KEPT static int c_deep(int depth) { int n = depth ? c_deep(depth - 1) : c_leaf(9); done++; return n; }
KEPT static int c_calls(int n) { int result = c_deep(n % 7); if (n % 4 == 0) result += goBack(n); done++; return result; }
*/
import "C"

import (
	"os"
	"strconv"
	"time"
)

var sink int

//
//export goBack
//go:noinline
func goBack(n C.int) C.int { return C.c_leaf(n) + 1 }

//go:noinline
func callsC(n int) int { return int(C.c_calls(C.int(n))) + 1 }

//go:noinline
func work(n int) int { return callsC(n) + 1 }

func main() {
	seconds := 1.0
	if len(os.Args) > 1 {
		seconds, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	end := time.Now().Add(time.Duration(seconds * 1e9))
	for n := 0; time.Now().Before(end); n++ {
		sink = work(n)
	}
}
