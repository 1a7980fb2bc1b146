# Tidies up after itself, which makes bash catch the signal as well.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"; echo "tidied up"' EXIT
python traps_and_exits.py 85
echo "goes on with something else"
