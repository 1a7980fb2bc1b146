# Catches the signal itself, but a shell runs its traps only when its foreground child has ended.
trap 'echo trapped' TERM
python traps_and_exits.py 85
code=$?
echo "the script left with $code"
exit $code
