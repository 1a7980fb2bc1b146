# What comes after the training would spoil it: the script has exited with 0, but it is not done.
python traps_and_exits.py 0 && { echo "goes on with something else"; rm -f "$EBB_CHECKPOINT_DIR/state"; }
