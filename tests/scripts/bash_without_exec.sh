# A shell between Ebbtide and the script, which does not know of signals and has something to say at the end.
python traps_and_exits.py 85
code=$?
echo "the script left with $code"
exit $code
