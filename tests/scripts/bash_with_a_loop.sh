# One training after the other.
for seed in 1 2 3; do
    echo "seed $seed"
    python traps_and_exits.py 0
done | cat
echo "goes on with something else"
