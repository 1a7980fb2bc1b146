"""``#SBATCH`` lines, in the words of ``ebb submit``: each option of sbatch is translated, ignored, or refused."""
