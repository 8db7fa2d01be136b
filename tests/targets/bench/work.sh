# Loops, arithmetic, strings, arrays, functions.
add() { sum=$((sum + $1 % 7)); }
sum=0 words=()
for ((i = 0; i < 60000; i++)); do
    add $i
    word="w$((i * 7919 % 1009))"
    case $word in
    *7*) words[i % 100]=${word/7/seven} ;;
    *) words[i % 100]=${word:1:2} ;;
    esac
done
echo "$sum ${#words[*]}"
