#!/bin/bash
#SBATCH --array=1-15:4,20
#SBATCH --cpus-per-task=2
#SBATCH --mem=4000

python process.py --shard $SLURM_ARRAY_TASK_ID --shards $SLURM_ARRAY_TASK_COUNT
