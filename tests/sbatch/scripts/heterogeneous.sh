#!/bin/bash
#SBATCH --ntasks=1 --cpus-per-task=16
#SBATCH hetjob
#SBATCH --ntasks=8 --gpus-per-task=1

srun --het-group=0 ./learner : --het-group=1 ./actor
