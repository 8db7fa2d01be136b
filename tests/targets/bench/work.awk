# Arrays, substrings, concatenation.
BEGIN {
    for (i = 0; i < 2000000; i++) {
        key = substr(i * 7919, 1, 3)
        sums[key] += i
        text = text (i % 10)
        if (length(text) > 100)
            text = ""
    }
    for (key in sums)
        all += sums[key]
    print all, length(text)
}
