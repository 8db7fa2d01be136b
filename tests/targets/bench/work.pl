# Hashes, strings, regular expressions, sorting, twenty-five times.
for my $round (1 .. 25) {
    my %text;
    for my $i (1 .. 60000) {
        my $key = join("-", $i % 97, $i % 13);
        $text{$key} .= chr(65 + $i % 26);
    }
    my $vowels = 0;
    for my $key (sort keys %text) {
        $vowels += () = $text{$key} =~ /[AEIOU]/g;
    }
    my @numbers = sort { $b <=> $a } map { $_ * 3 } grep { $_ % 7 } 1 .. 30000;
    print "$vowels $numbers[7]\n";
}
