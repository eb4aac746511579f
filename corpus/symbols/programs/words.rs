// Iterators, collections and generics, which the compiler inlines into one another.
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;

trait Score {
    fn score(&self) -> u64;
}

impl Score for str {
    fn score(&self) -> u64 {
        self.bytes().filter(|b| b.is_ascii_alphabetic()).map(|b| u64::from(b.to_ascii_lowercase() - b'a')).sum()
    }
}

fn counted<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    counts.into_iter().map(|(word, count)| (word.to_uppercase(), count)).collect()
}

fn longest<T: Display + Ord>(items: &[T]) -> Option<String> {
    items.iter().map(|item| item.to_string()).max_by_key(|text| (text.len(), text.clone()))
}

fn primes(limit: usize) -> Vec<usize> {
    let mut sieve = vec![true; limit];
    (2..limit)
        .filter(|&n| {
            if sieve[n] {
                (n * n..limit).step_by(n).for_each(|multiple| sieve[multiple] = false);
            }
            sieve[n]
        })
        .collect()
}

fn main() {
    let text = std::env::args().collect::<Vec<_>>().join(" ");
    let counts = counted(text.split_whitespace());
    let mut numbers = primes(5000);
    numbers.sort_by_key(|n| std::cmp::Reverse(n % 101));
    let scores: Vec<u64> = text.split(' ').map(Score::score).collect();
    println!("{counts:?} {:?} {:?} {}", longest(&numbers), longest(&scores), numbers.iter().sum::<usize>());
}
