fibonacci() {
    local n=$1
    if ((n < 2)); then result=$n; return; fi
    fibonacci $((n - 1)); local one=$result
    fibonacci $((n - 2)); ((result += one))
}
while :; do
    fibonacci 9
    words=$(for word in {1..40}; do echo "$word-$result"; done)
    for word in $words; do case ${word//-/} in *[13579]) odd=${word%-*} ;; *) even+=${word#*-} ;; esac; done
    IFS=- read -r first rest <<<"$words"; [[ $words =~ ([0-9]+)-([0-9]+) ]] && pairs[BASH_REMATCH[1]]=$first$rest$odd$even
    even=
done
