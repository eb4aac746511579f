package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
)

func fill(n, seed int) []int {
	values := make([]int, n)
	for i := range values {
		seed = seed*1103515245 + 12345
		values[i] = seed >> 16 & 0xffff
	}
	return values
}

func work(n, seed int) int {
	values := fill(n, seed)
	sort.Ints(values)
	text := make(map[string]int)
	for _, v := range values[:n/10] {
		text[strconv.Itoa(v)]++
	}
	return len(text)
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	var group sync.WaitGroup
	results := make(chan int, rounds*3)
	for worker := 0; worker < 3; worker++ {
		group.Add(1)
		go func(seed int) {
			defer group.Done()
			for round := 0; round < rounds; round++ {
				results <- work(20000, seed+round)
			}
		}(worker)
	}
	group.Wait()
	close(results)
	sum := 0
	for one := range results {
		sum += one
	}
	fmt.Println(sum)
}
