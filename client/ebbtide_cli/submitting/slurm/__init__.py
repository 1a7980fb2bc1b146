"""Translate ``#SBATCH`` lines into options of ``ebb submit``: each option is translated, ignored, or refused."""
