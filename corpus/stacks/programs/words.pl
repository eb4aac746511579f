use strict;
sub deep { my ($n, $s) = @_; return $n ? deep($n - 1, $s . "x") : length $s }
while (1) {
    my %count;
    my $text = join " ", map { sprintf "%s%d", chr(97 + $_ % 26) x ($_ % 5 + 1), $_ * 7919 % 1009 } 1 .. 2000;
    $count{$1}++ while $text =~ /\b([a-z]+?)(?=\d+\b)/g;
    my @sorted = sort { $count{$a} <=> $count{$b} or $a cmp $b } keys %count;
    (my $other = $text) =~ s/([a-e]+)(\d)/uc($1) . ($2 + 1)/ge;
    my @packed = unpack "(A3 n)*", pack "(A3 n)*", map { ($_, deep(20, $_)) } @sorted;
    my $sum = eval { my $t = 0; $t += $_ for map { deep(5 + $_ % 30, "") } 1 .. 50; die "no\n" if $t % 2; $t };
}
